#!/bin/sh
# Kubernetes with autoscaling: API pods, and workers by the length of the queue. PostgreSQL and a bucket are yours; the
# models are in deploy/kubernetes/offpeak.yaml, the image in kustomization.yaml. Without AWS_ACCESS_KEY_ID and its secret, the
# bucket is opened with the role of the pods' service account.
#
#   OFFPEAK_DATABASE=postgres://… OFFPEAK_BLOBS=s3://… sh examples/recipes/kubernetes.sh
set -eu
manifests=$(cd "$(dirname "$0")/../../deploy/kubernetes" && pwd)
kubectl create namespace offpeak --dry-run=client -o yaml | kubectl apply -f -
kubectl -n offpeak get secret offpeak > /dev/null 2>&1 || kubectl -n offpeak create secret generic offpeak \
  --from-literal=OFFPEAK_MASTER_KEY="$(openssl rand -base64 32)" \
  --from-literal=OFFPEAK_DATABASE="$OFFPEAK_DATABASE" --from-literal=OFFPEAK_BLOBS="$OFFPEAK_BLOBS" \
  ${AWS_ACCESS_KEY_ID:+--from-literal=AWS_ACCESS_KEY_ID="$AWS_ACCESS_KEY_ID"} \
  ${AWS_SECRET_ACCESS_KEY:+--from-literal=AWS_SECRET_ACCESS_KEY="$AWS_SECRET_ACCESS_KEY"}
# The queue's length comes to the autoscaler by prometheus-adapter; KEDA can take the same query.
helm upgrade --install prometheus-adapter prometheus-adapter --repo https://prometheus-community.github.io/helm-charts \
  -n monitoring --create-namespace -f "$manifests/prometheus-adapter.yaml"
kubectl apply -k "$manifests"
kubectl -n offpeak rollout status deploy/offpeak-api
kubectl -n offpeak exec deploy/offpeak-api -- offpeak keys create --project default
