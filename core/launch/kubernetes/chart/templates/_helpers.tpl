{{- define "ringtune.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "ringtune.claim" -}}
{{ .Values.runs.existingClaim | default (printf "%s-runs" (include "ringtune.name" .)) }}
{{- end }}
