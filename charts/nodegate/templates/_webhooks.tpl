{{/*
The webhook entries, as `nodegate render webhooks --service` prints them. A test compares the two, so change
both.
*/}}

{{/* Whether the requester is a kubelet, in CEL. */}}
{{- define "nodegate.kubelet" -}}
(request.userInfo.username.startsWith("system:node:") && "system:nodes" in request.userInfo.?groups.orValue([]))
{{- end }}

{{/* Whether an UPDATE can affect a decision. */}}
{{- define "nodegate.mutateChanges" -}}
request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({}) || object.?spec.?providerID.orValue("") != oldObject.?spec.?providerID.orValue("") || object.?spec.?taints != oldObject.?spec.?taints && object.?spec.?taints.orValue([]).filter(t, !t.key.startsWith("node.kubernetes.io/")) != oldObject.?spec.?taints.orValue([]).filter(t, !t.key.startsWith("node.kubernetes.io/"))
{{- end }}

{{/* Every policy document of the values, as a JSON list. */}}
{{- define "nodegate.policyDocuments" -}}
{{- $all := list }}
{{- range $file, $policy := .Values.policies.files }}
{{- if kindIs "string" $policy }}
{{- range regexSplit "(?m)^---(?:[ \t].*)?$" $policy -1 }}
{{- $document := fromYaml . }}
{{- if hasKey $document "Error" }}
{{- fail (printf "policies.files.%s: %s" $file $document.Error) }}
{{- end }}
{{- $all = append $all $document }}
{{- end }}
{{- else }}
{{- $all = append $all $policy }}
{{- end }}
{{- end }}
{{- $all | toRawJson }}
{{- end }}

{{/* Whether a write can violate a policy. */}}
{{- define "nodegate.validateChanges" -}}
{{- $annotations := .Values.webhooks.governAnnotations }}
{{- range include "nodegate.policyDocuments" . | fromJsonArray }}
{{- if contains "annotations" (toRawJson ((.spec).governance)) }}
{{- $annotations = true }}
{{- end }}
{{- end -}}
request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.?spec.?taints.orValue([]) != oldObject.?spec.?taints.orValue([]) ||{{ " " }}
{{- if $annotations -}}
object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({})
{{- else -}}
object.metadata.?annotations != oldObject.metadata.?annotations && (object.metadata.?annotations.orValue({}).size() > 1000 || oldObject.metadata.?annotations.orValue({}).size() > 1000 || object.metadata.?annotations.orValue({}).exists(k, k.startsWith("nodegate.dev/") && !(k in oldObject.metadata.?annotations.orValue({}) && oldObject.metadata.annotations[k] == object.metadata.annotations[k])) || oldObject.metadata.?annotations.orValue({}).exists(k, k.startsWith("nodegate.dev/") && !(k in object.metadata.?annotations.orValue({}))))
{{- end }}
{{- end }}

{{/* The break-glass groups of the values and the policies, as a JSON list. */}}
{{- define "nodegate.breakGlassGroups" -}}
{{- $groups := .Values.breakGlassGroups }}
{{- range include "nodegate.policyDocuments" . | fromJsonArray }}
{{- $groups = concat $groups (default list (((.spec).governance).breakGlass).groups) }}
{{- end }}
{{- range $groups }}
{{- $inner := trimSuffix "*" . }}
{{- if or (regexMatch "[*?\\[{]" $inner) (and (ne $inner .) (contains "\\" $inner)) }}
{{- fail (printf "break-glass group %q: a match condition supports only exact names and a '*' at the end" .) }}
{{- end }}
{{- end }}
{{- $groups | uniq | sortAlpha | toRawJson }}
{{- end }}

{{/* Whether the requester's writes pass while nodegate is unavailable, in CEL. */}}
{{- define "nodegate.spared" -}}
{{- $tests := list }}
{{- range include "nodegate.breakGlassGroups" . | fromJsonArray }}
{{- if and (hasSuffix "*" .) (hasPrefix "system:" .) }}
{{- $tests = append $tests (printf "g.startsWith(%q)" (trimSuffix "*" .)) }}
{{- else if hasSuffix "*" . }}
{{- $tests = append $tests (printf "(g.startsWith(%q) && !g.startsWith(\"system:\"))" (trimSuffix "*" .)) }}
{{- else }}
{{- $tests = append $tests (printf "g == %q" .) }}
{{- end }}
{{- end }}
{{- include "nodegate.kubelet" . }} || request.userInfo.username in ["system:apiserver", "system:kube-controller-manager", "system:cloud-controller-manager", "eks:cloud-controller-manager", "k3s-cloud-controller-manager", "rke2-cloud-controller-manager"] || request.userInfo.username.startsWith("system:serviceaccount:kube-system:")
{{- with $tests }} || request.userInfo.?groups.orValue([]).exists(g, {{ join " || " . }}){{ end }}
{{- end }}

{{/* The common fields of every entry. Takes a dictionary: root, path, caBundle, resources; timeout; group and version if not core/v1. */}}
{{- define "nodegate.webhook" -}}
admissionReviewVersions: [v1]
sideEffects: None
matchPolicy: Equivalent
timeoutSeconds: {{ .timeout }}
clientConfig:
  {{- with .caBundle }}
  caBundle: {{ . | b64enc }}
  {{- end }}
  service:
    name: {{ include "nodegate.fullname" .root }}
    namespace: {{ include "nodegate.namespace" .root | quote }}
    path: {{ .path }}
    port: 443
rules:
  - apiGroups: [{{ .group | default "" | quote }}]
    apiVersions: [{{ .version | default "v1" }}]
    operations: [CREATE, UPDATE]
    resources: {{ toJson .resources }}
    scope: Cluster
{{- end }}

{{/* The match conditions of every validating entry. */}}
{{- define "nodegate.validateConditions" -}}
- name: can-violate
  expression: |-
    {{- include "nodegate.validateChanges" . | nindent 4 }}
# The mutating webhook corrects a kubelet's own CREATE, which is never refused.
- name: not-a-kubelet-joining
  expression: |-
    {{- printf "!(request.operation == \"CREATE\" && %s)" (include "nodegate.kubelet" .) | nindent 4 }}
- name: not-nodegate-itself
  expression: |-
    {{- printf "request.userInfo.username != %q" (include "nodegate.user" .) | nindent 4 }}
{{- end }}

{{/* Both configurations. Each takes a dictionary: root, caBundle, annotations. */}}
{{- define "nodegate.mutatingConfiguration" -}}
# Deleting this object, and the validating one, always recovers a cluster.
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  name: {{ include "nodegate.fullname" .root }}
  {{- include "nodegate.meta" (dict "root" .root "annotations" .annotations) | nindent 2 }}
webhooks:
  - name: mutate.nodegate.dev
    {{- include "nodegate.webhook" (dict "root" .root "path" "/mutate" "caBundle" .caBundle "resources" (list "nodes") "timeout" .root.Values.webhooks.timeoutSeconds.mutating) | nindent 4 }}
    failurePolicy: Ignore
    reinvocationPolicy: IfNeeded
    matchConditions:
      - name: can-matter
        expression: |-
          {{- include "nodegate.mutateChanges" .root | nindent 10 }}
      - name: not-nodegate-itself
        expression: |-
          {{- printf "request.userInfo.username != %q" (include "nodegate.user" .root) | nindent 10 }}
{{- end }}

{{- define "nodegate.validatingConfiguration" -}}
{{- $policy := .root.Values.webhooks.validatingFailurePolicy }}
{{- $annotations := .annotations }}
{{- $first := $policy }}
{{- if include "nodegate.armed" .root }}
{{- $first = "Ignore" }}
{{- $annotations = merge (dict "nodegate.dev/failure-policy" "validate.nodegate.dev=Fail") $annotations }}
{{- end }}
{{- $validate := include "nodegate.webhook" (dict "root" .root "path" "/validate" "caBundle" .caBundle "resources" (list "nodes" "nodes/status") "timeout" .root.Values.webhooks.timeoutSeconds.validating) }}
{{- $conditions := include "nodegate.validateConditions" .root }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata:
  name: {{ include "nodegate.fullname" .root }}
  {{- include "nodegate.meta" (dict "root" .root "annotations" $annotations) | nindent 2 }}
webhooks:
  - name: validate.nodegate.dev
    {{- $validate | nindent 4 }}
    {{- if ne $first $policy }}
    # The leader sets it to {{ $policy }} once it serves.
    {{- end }}
    failurePolicy: {{ $first }}
    matchConditions:
      {{- $conditions | nindent 6 }}
  {{- if eq $policy "Fail" }}
  {{- $spared := include "nodegate.spared" .root }}
      - name: not-spared
        expression: |-
          {{- printf "!(%s)" $spared | nindent 10 }}
  - name: validate-spared.nodegate.dev
    {{- $validate | nindent 4 }}
    failurePolicy: Ignore
    matchConditions:
      {{- $conditions | nindent 6 }}
      - name: spared
        expression: |-
          {{- $spared | nindent 10 }}
  {{- end }}
  # Refuses policies that do not compile. Never Fail, so that users can repair policies while nodegate is unavailable.
  - name: policies.nodegate.dev
    {{- include "nodegate.webhook" (dict "root" .root "path" "/validate" "caBundle" .caBundle "group" "nodegate.dev" "version" "v1alpha1" "resources" (list "nodepolicies") "timeout" .root.Values.webhooks.timeoutSeconds.policies) | nindent 4 }}
    failurePolicy: Ignore
{{- end }}
