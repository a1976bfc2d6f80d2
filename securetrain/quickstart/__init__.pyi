# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .screen import QuietScreen as QuietScreen
from .screen import RichScreen as RichScreen
from .story import tell as tell
from .story_state import STEPS as STEPS
from .story_state import Options as Options
from .story_state import Story as Story
