{{- define "nodegate.name" -}}
{{- if contains "nodegate" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-nodegate" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "nodegate.selector" -}}
app.kubernetes.io/name: nodegate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nodegate.labels" -}}
{{ include "nodegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "nodegate.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "nodegate.name" .) }}
{{- end }}

{{- define "nodegate.tlsSecret" -}}
{{- if eq .Values.tls.mode "secret" }}{{ required "tls.secretName: name the Secret with tls.crt and tls.key" .Values.tls.secretName }}{{ else }}{{ include "nodegate.name" . }}-tls{{ end }}
{{- end }}

{{- /* Who a kubelet is, in CEL. */ -}}
{{- define "nodegate.kubelet" -}}
(request.userInfo.username.startsWith("system:node:") && "system:nodes" in request.userInfo.?groups.orValue([]))
{{- end }}

{{- /* Whose writes pass while nodegate is away, in CEL. */ -}}
{{- define "nodegate.spared" -}}
{{ include "nodegate.kubelet" . }}
{{- if .Values.breakGlassGroups }}
{{- $tests := list }}
{{- range .Values.breakGlassGroups }}
{{- if hasSuffix "*" . }}{{ $tests = append $tests (printf "g.startsWith(%q)" (trimSuffix "*" .)) }}{{ else }}{{ $tests = append $tests (printf "g == %q" .) }}{{ end }}
{{- end }} || request.userInfo.?groups.orValue([]).exists(g, {{ join " || " $tests }})
{{- end }}
{{- end }}
