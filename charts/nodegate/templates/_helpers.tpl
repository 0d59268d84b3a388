{{- define "nodegate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* 52 characters leave room for "-policies" and the like. */}}
{{- define "nodegate.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := include "nodegate.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "nodegate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "nodegate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nodegate.labels" -}}
{{ include "nodegate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "nodegate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "nodegate.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- /* Other pods may use the namespace's `default` account, and nodegate's account is never judged. */}}
{{- required "serviceAccount.name: name an account of nodegate's own, or leave serviceAccount.create true" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "nodegate.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The user name of the pods in the API server. */}}
{{- define "nodegate.user" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "nodegate.serviceAccountName" .) }}
{{- end }}

{{/* The ConfigMap of policies, or nothing. */}}
{{- define "nodegate.policiesConfigMap" -}}
{{- if .Values.policies.files }}
{{- if .Values.policies.existingConfigMap }}
{{- fail "policies.files and policies.existingConfigMap: set only one of them" }}
{{- end }}
{{- include "nodegate.fullname" . }}-policies
{{- else }}
{{- .Values.policies.existingConfigMap }}
{{- end }}
{{- end }}

{{/* Whether nodegate manages its certificate itself, in the Secret nodegate-tls: "true" or nothing. */}}
{{- define "nodegate.selfManaged" -}}
{{- if and .Values.controller.enabled (not .Values.tls.existingSecret) (not .Values.tls.certManager.enabled) }}true{{ end }}
{{- end }}

{{/* Whether the controller changes failurePolicy of the validating webhook from Ignore to Fail when it serves: "true" or nothing. */}}
{{- define "nodegate.armed" -}}
{{- if and .Values.controller.enabled .Values.webhooks.enabled (eq .Values.webhooks.validatingFailurePolicy "Fail") }}true{{ end }}
{{- end }}

{{/* The Secret with the certificate. */}}
{{- define "nodegate.tlsSecret" -}}
{{- if and .Values.tls.existingSecret .Values.tls.certManager.enabled }}
{{- fail "tls.existingSecret and tls.certManager.enabled: set only one of them" }}
{{- end }}
{{- default (printf "%s-tls" (include "nodegate.fullname" .)) .Values.tls.existingSecret }}
{{- end }}

{{/* Whether callers must present a client certificate: "true" or nothing. */}}
{{- define "nodegate.clientAuth" -}}
{{- with .Values.clientAuth }}
{{- if and .caSecret .caConfigMap }}
{{- fail "clientAuth.caSecret and clientAuth.caConfigMap: set only one of them" }}
{{- end }}
{{- if or .caSecret .caConfigMap }}true
{{- else if .names }}
{{- fail "clientAuth.names: set clientAuth.caSecret or clientAuth.caConfigMap to the CA of these certificates" }}
{{- end }}
{{- end }}
{{- end }}

{{/* The DNS names of the Service; the API server uses the first one. */}}
{{- define "nodegate.dnsNames" -}}
{{- $name := include "nodegate.fullname" . -}}
- {{ $name }}.{{ .Release.Namespace }}.svc
- {{ $name }}.{{ .Release.Namespace }}.svc.cluster.local
- {{ $name }}.{{ .Release.Namespace }}
- {{ $name }}
{{- end }}

{{/*
A new node has taints until another component removes them. With Fail that write is refused while nodegate is unavailable,
so nodegate must tolerate them. Otherwise a cluster with only new nodes could never start.
*/}}
{{- define "nodegate.tolerations" -}}
- key: {{ .Values.pendingTaint.key }}
  operator: Exists
  effect: NoSchedule
{{- if eq .Values.webhooks.validatingFailurePolicy "Fail" }}
{{- range list "node.kubernetes.io/not-ready" "node.kubernetes.io/network-unavailable" "node.cloudprovider.kubernetes.io/uninitialized" }}
- key: {{ . }}
  operator: Exists
  effect: NoSchedule
{{- end }}
{{- end }}
{{- with .Values.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The newest version of MutatingAdmissionPolicy that the API server supports, or nothing. */}}
{{- define "nodegate.mutatingVersion" -}}
{{- if or (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy") (semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version) -}}
admissionregistration.k8s.io/v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" -}}
admissionregistration.k8s.io/v1beta1
{{- end }}
{{- end }}
