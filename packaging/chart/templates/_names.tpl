{{- define "ironverbs.name" -}}
{{- if contains "ironverbs" .Release.Name }}{{ .Release.Name | trunc 53 | trimSuffix "-" }}{{ else }}{{ printf "%s-ironverbs" .Release.Name | trunc 53 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ironverbs.labels" -}}
app.kubernetes.io/name: ironverbs
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ironverbs.image" -}}
{{ required "expected image.repository" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Says what is wrong with the values in a line. */ -}}
{{- define "ironverbs.check" -}}
{{- $vfs := int .Values.vfs }}
{{- if or (lt $vfs 1) (gt $vfs 127) }}{{ fail (printf "vfs: expected 1 to 127, found %v" .Values.vfs) }}{{ end }}
{{- if not (has .Values.linkLayer (list "ethernet" "infiniband")) }}{{ fail (printf "linkLayer: expected ethernet or infiniband, found %v" .Values.linkLayer) }}{{ end }}
{{- if not (has .Values.plugin (list "vf" "shared")) }}{{ fail (printf "plugin: expected vf or shared, found %v" .Values.plugin) }}{{ end }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[a-zA-Z0-9]([-_a-zA-Z0-9]*[a-zA-Z0-9])?$" (toString .Values.resource)) }}{{ fail (printf "resource: expected a domain and a name, such as rdma/vf, found %v" .Values.resource) }}{{ end }}
{{- if lt (int .Values.sharedPods) 1 }}{{ fail (printf "sharedPods: expected 1 or more, found %v" .Values.sharedPods) }}{{ end }}
{{- range $key := list "nodeDirectory" "hostDirectory" "kubeletDirectory" }}
{{- $found := index $.Values $key }}
{{- if not (regexMatch "^(/[-_.a-zA-Z0-9]+)+$" (toString $found)) }}{{ fail (printf "%s: expected a path of plain letters, found %v" $key $found) }}{{ end }}
{{- end }}
{{- if eq (dir .Values.nodeDirectory) "/" }}{{ fail (printf "nodeDirectory: expected a folder in memory, such as /dev/shm/ironverbs, found %v" .Values.nodeDirectory) }}{{ end }}
{{- end }}

{{- /* What its containers have in common; mounts follow. */ -}}
{{- define "ironverbs.container" -}}
image: {{ include "ironverbs.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [ironverbs-node]
securityContext: {privileged: true}
resources: {requests: {cpu: 10m, memory: 40Mi}}
env:
- {name: IRONVERBS_HOST, value: {{ .Values.hostDirectory | quote }}}
- {name: IRONVERBS_NODE, value: {{ .Values.nodeDirectory | quote }}}
- {name: IRONVERBS_RUNTIME, value: {{ required "expected runtime.program" .Values.runtime.program | quote }}}
- {name: IRONVERBS_DEV, value: /host/dev}
volumeMounts:
{{- end }}
