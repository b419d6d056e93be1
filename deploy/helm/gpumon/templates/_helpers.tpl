{{- define "gpumon.selector" -}}
app.kubernetes.io/name: gpumon
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpumon.labels" -}}
{{ include "gpumon.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "gpumon.name" -}}
{{ if contains "gpumon" .Release.Name }}{{ .Release.Name | trunc 50 }}{{ else }}{{ .Release.Name | trunc 43 }}-gpumon{{ end }}
{{- end }}

{{- define "gpumon.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
