#!/bin/sh
# Make the fleet's certificates on a machine that you trust, and hand each role's bundles to the cluster as a secret.
# ca/ca.key stays here: whoever has it can admit nodes.
set -eu
espalier certs init
espalier certs issue cloud --role cloud --host cloud
for i in 0 1 2; do espalier certs issue "edge-$i" --role edge --host "edge-$i.edge"; done
for i in 0 1 2 3 4 5 6 7 8 9 10 11; do espalier certs issue "device-$i" --role device; done
# who submits runs: ca/operator stays here, or goes to that person
espalier certs issue operator --role operator
# a pod of a StatefulSet takes the bundle that is called as it is
for role in cloud edge device; do
  mkdir -m 700 "bundles-$role"
  for bundle in ca/"$role"*; do
    name=$(basename "$bundle")
    test "$role" = cloud && name=cloud-0
    tar -C "$bundle" -cf "bundles-$role/$name.tar" ca.pem crl.pem node.key node.pem
  done
  kubectl -n espalier create secret generic "$role-bundles" --from-file="bundles-$role"
done
rm -r bundles-cloud bundles-edge bundles-device
