# kubeconfig.sh CERTIFICATE TOKEN: prints a kubeconfig for the control plane.
cat <<END
apiVersion: v1
kind: Config
clusters:
- name: ironverbs
  cluster:
    server: https://10.10.0.100:6443
    certificate-authority-data: $(base64 -w0 <"$1")
users:
- name: admin
  user: {token: $2}
contexts:
- name: ironverbs
  context: {cluster: ironverbs, user: admin}
current-context: ironverbs
END
