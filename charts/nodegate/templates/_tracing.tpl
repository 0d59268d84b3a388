{{/* Traces: the variables of OpenTelemetry, and whether the collector's CA is in a file. */}}
{{- define "nodegate.tracing" -}}
{{- with .Values.tracing }}
{{- if .endpoint }}
{{- $attributes := dict "k8s.namespace.name" (include "nodegate.namespace" $) "k8s.pod.name" "$(POD_NAME)" }}
{{- $list := list }}
{{- range $key, $value := merge (deepCopy .resourceAttributes) $attributes }}
{{- /* Commas and percent signs would end the value. */}}
{{- $list = append $list (printf "%s=%s" $key ($value | replace "%" "%25" | replace "," "%2C")) }}
{{- end }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ .endpoint | quote }}}
- {name: OTEL_TRACES_SAMPLER, value: {{ .sampler }}}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ .ratio | quote }}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- {name: OTEL_RESOURCE_ATTRIBUTES, value: {{ join "," $list | quote }}}
{{- with .headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.tracing.headersKey | quote }}}}
{{- end }}
{{- if include "nodegate.collectorCa" $ }}
- {name: OTEL_EXPORTER_OTLP_CERTIFICATE, value: /etc/nodegate/collector/ca.crt}
{{- end }}
{{- else if or .headersSecret .caSecret .caConfigMap .resourceAttributes }}
{{- fail "tracing: set tracing.endpoint to the collector's URL, or remove the other values of tracing" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "nodegate.collectorCa" -}}
{{- with .Values.tracing }}
{{- if and .caSecret .caConfigMap }}
{{- fail "tracing.caSecret and tracing.caConfigMap: set only one of them" }}
{{- end }}
{{- if or .caSecret .caConfigMap }}true{{ end }}
{{- end }}
{{- end }}
