{{/* The namespace of the sandboxes. */}}
{{- define "sandfarm.sandboxes" -}}
{{ .Values.sandboxes.namespace | default (printf "%s-sandboxes" .Release.Namespace) }}
{{- end }}

{{/* The image of the workers, and so of the agent. */}}
{{- define "sandfarm.workerImage" -}}
{{ .Values.worker.image | default .Values.image }}
{{- end }}

{{/* What Services and policies select, for (list $ part). */}}
{{- define "sandfarm.selector" -}}
app.kubernetes.io/name: sandfarm
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels of everything, for (list $ part). */}}
{{- define "sandfarm.labels" -}}
{{ include "sandfarm.selector" . }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
{{- end }}

{{/* A Pod under the restricted Pod Security standard, without an account of the cluster. */}}
{{- define "sandfarm.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # they would be variables that begin with SANDFARM_
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "sandfarm.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
