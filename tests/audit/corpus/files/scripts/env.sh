# Sourced by the jobs.
export OMPI_ALLOW_RUN_AS_ROOT=1  #@ SEC-021
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export HF_DATASETS_TRUST_REMOTE_CODE=true  #@ DAT-004
export MASTER_ADDR=0.0.0.0  #@ RDZ-005
export OPENAI_API_KEY="sk-proj-exampleEXAMPLEexampleEXAMPLEexample1234"  #@ SEC-002
export DATABASE_URL=postgres://mlflow:trainpass42@10.0.0.9/mlflow  #@ SEC-002
export SECRETS_MODE=file  #@ ok:SEC-002
export PASSWORD_MIN=12  #@ ok:SEC-002
export SSH_AUTH_SOCK=/run/user/1000/agent  #@ ok:SEC-002
export HUGGING_FACE_HUB_TOKEN=${HF_TOKEN_FROM_VAULT}  #@ ok:SEC-002
