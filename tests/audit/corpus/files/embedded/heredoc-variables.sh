#!/bin/sh
NAMESPACE=${NAMESPACE:-default}
IMAGE=${IMAGE:?the image}
cat <<EOF | kubectl apply -n "$NAMESPACE" -f -
apiVersion: batch/v1
kind: Job
metadata:
  name: burn-in-${USER}
spec:
  template:
    spec:  #@ lone
      hostNetwork: ${HOST_NETWORK}  #@ open:K8S-002
      hostIPC: true  #@ K8S-003
      restartPolicy: Never
      containers:
      - name: burn
        image: ${IMAGE}  #@ open:K8S-010
        securityContext:  #@ bare
          privileged: ${PRIVILEGED}  #@ open:K8S-001
      volumes:
      - name: sock
        hostPath: {path: /var/run/crio/crio.sock}  #@ K8S-006
EOF
