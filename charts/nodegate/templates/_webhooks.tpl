{{/*
The webhook entries, as `nodegate render webhooks --service` prints them; a test compares the two. Whoever changes one side
changes the other.
*/}}

{{/* Who a kubelet is, in CEL. */}}
{{- define "nodegate.kubelet" -}}
(request.userInfo.username.startsWith("system:node:") && "system:nodes" in request.userInfo.?groups.orValue([]))
{{- end }}

{{/* An UPDATE that can matter to a decision. */}}
{{- define "nodegate.mutateChanges" -}}
request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({}) || object.?spec.?providerID.orValue("") != oldObject.?spec.?providerID.orValue("") || object.?spec.?taints.orValue([]).filter(t, !t.key.startsWith("node.kubernetes.io/")) != oldObject.?spec.?taints.orValue([]).filter(t, !t.key.startsWith("node.kubernetes.io/"))
{{- end }}

{{/* A write that can violate a policy. */}}
{{- define "nodegate.validateChanges" -}}
request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.?spec.?taints.orValue([]) != oldObject.?spec.?taints.orValue([]) || object.metadata.?annotations[?"nodegate.dev/last-change"].orValue("") != oldObject.metadata.?annotations[?"nodegate.dev/last-change"].orValue("")
{{- end }}

{{/* The groups that break the glass, by value and by policy, as a JSON list. */}}
{{- define "nodegate.breakGlassGroups" -}}
{{- $groups := .Values.breakGlassGroups }}
{{- range $file, $policy := .Values.policies.files }}
{{- $documents := list $policy }}
{{- if kindIs "string" $policy }}
{{- $documents = list }}
{{- range regexSplit "(?m)^---(?:[ \t].*)?$" $policy -1 }}
{{- $document := fromYaml . }}
{{- if hasKey $document "Error" }}
{{- fail (printf "policies.files.%s: %s" $file $document.Error) }}
{{- end }}
{{- $documents = append $documents $document }}
{{- end }}
{{- end }}
{{- range $documents }}
{{- $groups = concat $groups (default list (((.spec).governance).breakGlass).groups) }}
{{- end }}
{{- end }}
{{- range $groups }}
{{- if regexMatch "[*?\\[{]" (trimSuffix "*" .) }}
{{- fail (printf "break-glass group %q: a match condition takes exact names and a '*' at the end only" .) }}
{{- end }}
{{- end }}
{{- $groups | uniq | sortAlpha | toRawJson }}
{{- end }}

{{/* Whose writes pass when nodegate is away, in CEL. */}}
{{- define "nodegate.spared" -}}
{{- $tests := list }}
{{- range include "nodegate.breakGlassGroups" . | fromJsonArray }}
{{- if hasSuffix "*" . }}
{{- $tests = append $tests (printf "g.startsWith(%q)" (trimSuffix "*" .)) }}
{{- else }}
{{- $tests = append $tests (printf "g == %q" .) }}
{{- end }}
{{- end }}
{{- include "nodegate.kubelet" . }} || request.userInfo.username in ["system:apiserver", "system:kube-controller-manager", "system:cloud-controller-manager"] || request.userInfo.username.startsWith("system:serviceaccount:kube-system:")
{{- with $tests }} || request.userInfo.?groups.orValue([]).exists(g, {{ join " || " . }}){{ end }}
{{- end }}

{{/* What every entry has. Takes a dictionary: root, path, caBundle, resources. */}}
{{- define "nodegate.webhook" -}}
admissionReviewVersions: [v1]
sideEffects: None
matchPolicy: Equivalent
timeoutSeconds: 2
clientConfig:
  {{- with .caBundle }}
  caBundle: {{ . | b64enc }}
  {{- end }}
  service:
    name: {{ include "nodegate.fullname" .root }}
    namespace: {{ .root.Release.Namespace }}
    path: {{ .path }}
    port: 443
rules:
  - apiGroups: [""]
    apiVersions: [v1]
    operations: [CREATE, UPDATE]
    resources: {{ toJson .resources }}
    scope: Cluster
{{- end }}

{{/* The conditions of every validating entry. */}}
{{- define "nodegate.validateConditions" -}}
- name: can-violate
  expression: |-
    {{- include "nodegate.validateChanges" . | nindent 4 }}
# A kubelet's own CREATE is corrected by the other webhook and never refused.
- name: not-a-kubelet-joining
  expression: |-
    {{- printf "!(request.operation == \"CREATE\" && %s)" (include "nodegate.kubelet" .) | nindent 4 }}
- name: not-nodegate-itself
  expression: |-
    {{- printf "request.userInfo.username != %q" (include "nodegate.user" .) | nindent 4 }}
{{- end }}
