{{/* The files of a pod: where they are mounted, and where they come from. */}}
{{- define "nodegate.volumeMounts" -}}
{{- if not (include "nodegate.selfManaged" .) }}
- {name: tls, mountPath: /etc/nodegate/tls, readOnly: true}
{{- end }}
{{- if include "nodegate.clientAuth" . }}
- {name: callers, mountPath: /etc/nodegate/callers, readOnly: true}
{{- end }}
{{- if include "nodegate.collectorCa" . }}
- {name: collector, mountPath: /etc/nodegate/collector, readOnly: true}
{{- end }}
{{- if include "nodegate.policiesConfigMap" . }}
- {name: policies, mountPath: /etc/nodegate/policies, readOnly: true}
{{- end }}
{{- if .Values.labelFiles }}
- {name: labels, mountPath: /etc/nodegate/labels, readOnly: true}
{{- end }}
{{- range $name, $_ := .Values.inventories.credentials }}
- {name: inventory-{{ $name }}, mountPath: /etc/nodegate/inventories/{{ $name }}, readOnly: true}
{{- end }}
{{- if .Values.stateVolume }}
- {name: state, mountPath: /var/lib/nodegate/state, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- define "nodegate.volumes" -}}
{{- if not (include "nodegate.selfManaged" .) }}
- name: tls
  secret:
    secretName: {{ include "nodegate.tlsSecret" . }}
    defaultMode: 288 # 0440; the group is podSecurityContext.fsGroup
    items:
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
{{- end }}
{{- if include "nodegate.clientAuth" . }}
- name: callers
  {{- with .Values.clientAuth }}
  {{- if .caSecret }}
  secret:
    secretName: {{ .caSecret }}
    defaultMode: 288
  {{- else }}
  configMap:
    name: {{ .caConfigMap }}
  {{- end }}
    items:
      - {key: {{ .key | quote }}, path: ca.crt}
  {{- end }}
{{- end }}
{{- if include "nodegate.collectorCa" . }}
- name: collector
  {{- with .Values.tracing }}
  {{- if .caSecret }}
  secret:
    secretName: {{ .caSecret }}
    defaultMode: 288
  {{- else }}
  configMap:
    name: {{ .caConfigMap }}
  {{- end }}
    items:
      - {key: {{ .caKey | quote }}, path: ca.crt}
  {{- end }}
{{- end }}
{{- with include "nodegate.policiesConfigMap" . }}
- name: policies
  configMap:
    name: {{ . }}
{{- end }}
{{- if .Values.labelFiles }}
- name: labels
  configMap:
    name: {{ include "nodegate.fullname" . }}-labels
    items:
      {{- range $label, $_ := .Values.labelFiles }}
      - {key: {{ $label | replace "/" "_" }}, path: {{ $label }}}
      {{- end }}
{{- end }}
{{- range $name, $secret := .Values.inventories.credentials }}
- name: inventory-{{ $name }}
  secret:
    secretName: {{ $secret }}
    defaultMode: 288
{{- end }}
{{- with .Values.stateVolume }}
- name: state
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range .Values.extraVolumes }}
{{- if or (has .name (list "tls" "callers" "policies" "labels" "state")) (and (eq .name "collector") (include "nodegate.collectorCa" $)) (hasPrefix "inventory-" .name) }}
{{- fail (printf "extraVolumes: the chart has a volume %q itself; choose another name" .name) }}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
