# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0

from . import checkpoint_predicate as checkpoint_predicate
from . import context as context
from . import dataset_predicate as dataset_predicate
from . import members as members
from . import saved_files as saved_files
from .dataset_predicate import DatasetPredicate as DatasetPredicate
from .reading import read_statement as read_statement
from .rules import Shown as Shown
from .rules import expected_by as expected_by
from .statements import DIGEST_NAME as DIGEST_NAME
from .statements import Bound as Bound
from .statements import CheckpointPredicate as CheckpointPredicate
from .statements import DatasetRef as DatasetRef
from .statements import GradientRecord as GradientRecord
from .statements import GradientVerdict as GradientVerdict
from .statements import NodeRef as NodeRef
from .statements import Opened as Opened
from .statements import Parent as Parent
from .statements import ParentRole as ParentRole
from .statements import PolicyRef as PolicyRef
from .statements import claimed_kind as claimed_kind
from .statements import digest_of as digest_of
from .statements import open_statement as open_statement
from .statements import read_message as read_message
