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

{{/* The namespace of everything that is in one. */}}
{{- define "nodegate.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
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

{{/*
Labels and annotations of an object: the chart's own, then those of the object's values, then those for all objects.
Takes a dictionary: root, labels, annotations; component, if no selector of the pods that serve may select it.
*/}}
{{- define "nodegate.meta" -}}
{{- $own := include "nodegate.labels" .root | fromYaml }}
{{- with .component }}
{{- $own = merge (dict "app.kubernetes.io/component" . "app.kubernetes.io/name" (printf "%s-%s" (include "nodegate.name" $.root | trunc 54) .)) $own }}
{{- end }}
{{- range $key, $_ := merge dict (default dict .labels) (default dict .root.Values.commonLabels) }}
{{- if hasKey $own $key }}
{{- fail (printf "label %s: the chart sets it itself; remove it from commonLabels and from the labels of this object" $key) }}
{{- end }}
{{- end -}}
labels: {{- merge $own (default dict .labels) (default dict .root.Values.commonLabels) | toYaml | nindent 2 }}
{{- with merge (deepCopy (default dict .annotations)) (default dict .root.Values.commonAnnotations) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
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
{{- $registry := default .Values.image.registry (.Values.global | default dict).imageRegistry }}
{{- $name := join "/" (compact (list $registry .Values.image.repository)) }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $name .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* The Secrets with which images are pulled, those of all charts first. */}}
{{- define "nodegate.imagePullSecrets" -}}
{{- $secrets := list }}
{{- range concat ((.Values.global | default dict).imagePullSecrets | default list) .Values.imagePullSecrets }}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) }}
{{- end }}
{{- with uniq $secrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The user name of the pods in the API server. */}}
{{- define "nodegate.user" -}}
{{- printf "system:serviceaccount:%s:%s" (include "nodegate.namespace" .) (include "nodegate.serviceAccountName" .) }}
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
- {{ $name }}.{{ include "nodegate.namespace" . }}.svc
- {{ $name }}.{{ include "nodegate.namespace" . }}.svc.cluster.local
- {{ $name }}.{{ include "nodegate.namespace" . }}
- {{ $name }}
{{- end }}

{{/*
A new node has taints until another component removes them. With Fail that write is refused while nodegate is unavailable,
so nodegate must tolerate them. Otherwise a cluster with only new nodes could never start. The first are the pending taints of every
setting: a node may have got one by an earlier setting.
*/}}
{{- define "nodegate.tolerations" -}}
{{- $pending := list "startup-taint.cluster-autoscaler.kubernetes.io/nodegate" "readiness.k8s.io/nodegate" "nodegate.dev/pending" }}
{{- if ne .Values.pendingTaint.key "auto" }}
{{- $pending = prepend $pending .Values.pendingTaint.key | uniq }}
{{- end }}
{{- range $pending }}
- key: {{ . }}
  operator: Exists
  effect: NoSchedule
{{- end }}
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

{{/* Where a pod that runs once may run, and as whom: as the pods that serve. */}}
{{- define "nodegate.once" -}}
restartPolicy: Never
enableServiceLinks: false
{{- with include "nodegate.imagePullSecrets" . | trim }}
{{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
tolerations: {{- include "nodegate.tolerations" . | nindent 2 }}
{{- end }}

{{/* The container of such a pod, without its name and arguments. */}}
{{- define "nodegate.onceContainer" -}}
image: {{ include "nodegate.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.securityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The content of the ConfigMap of policies. */}}
{{- define "nodegate.policiesData" -}}
{{- range $file, $policy := .Values.policies.files }}
{{- /* The 2 is the indentation of the text, which may itself begin with spaces. */}}
{{ $file }}: |2
  {{- if kindIs "string" $policy }}
  {{- $policy | nindent 2 }}
  {{- else }}
  {{- toYaml $policy | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Whether there is a pod for `helm test`: "true" or nothing. */}}
{{- define "nodegate.tested" -}}
{{- if and .Values.tests.enabled .Values.webhooks.enabled (not (include "nodegate.clientAuth" .)) }}true{{ end }}
{{- end }}

{{/* That pod, as a peer of the NetworkPolicy. */}}
{{- define "nodegate.testPeer" -}}
{{- if include "nodegate.tested" . -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ include "nodegate.name" . | trunc 54 }}-test
      app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- end }}

{{/* Whether extraEnv or extraArgs name policies, besides those of the values: "true" or nothing. */}}
{{- define "nodegate.morePolicies" -}}
{{- range .Values.extraEnv }}{{ if has .name (list "PERSIST_LABEL_PREFIX" "NODEGATE_POLICY" "NODEGATE_LABELS_DIR") }}true{{ end }}{{ end }}
{{- range .Values.extraArgs }}{{ if or (hasPrefix "--policy" .) (hasPrefix "--labels-dir" .) }}true{{ end }}{{ end }}
{{- end }}
