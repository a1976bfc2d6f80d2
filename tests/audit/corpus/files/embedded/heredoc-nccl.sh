#!/usr/bin/env bash
# Runs the NCCL tests on every node pair.
set -euo pipefail
NODES=${1:-2}

kubectl apply -f - <<'EOF'
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata:
  name: pairwise
spec:
  mpiReplicaSpecs:
    Launcher:
      template:
        spec:  #@ lone
          containers:
          - name: launcher  #@ bare
            image: mpioperator/mpi-pi:openmpi  #@ tag
            command: [mpirun, --allow-run-as-root, -n, "2", /home/mpiuser/pi]  #@ SEC-021
    Worker:
      replicas: 2
      template:
        spec:  #@ lone
          hostNetwork: true  #@ K8S-002
          containers:
          - name: worker
            image: mpioperator/mpi-pi:openmpi  #@ tag
            securityContext:  #@ bare
              privileged: true  #@ K8S-001
              capabilities: {add: [NET_ADMIN]}  #@ K8S-007
            volumeMounts: [{name: ib, mountPath: /dev/infiniband}]
          volumes:
          - name: ib
            hostPath: {path: /dev/infiniband}  #@ K8S-019
EOF

for i in $(seq "$NODES"); do
  kubectl wait --for=condition=Succeeded mpijob/pairwise --timeout=600s
done
