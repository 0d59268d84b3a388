//! Values with which the chart is tested.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Value sets that between them reach every template.
pub(crate) fn value_sets() -> BTreeMap<&'static str, Value> {
    let policy = |name: &str, spec: Value| {
        json!({
            "apiVersion": "nodegate.dev/v1alpha1", "kind": "NodePolicy", "metadata": {"name": name}, "spec": spec,
        })
    };
    let break_glass = |group: &str| json!({"governance": {"breakGlass": {"groups": [group]}}});
    let text =
        format!("# two\n{}\n--- # documents\n{}", policy("one", json!({})), policy("two", break_glass("night-shift")));
    let rules = json!({"rules": [{"name": "all", "priority": 20_000_000, "labels": {"tier": "any"}}]});
    BTreeMap::from([
        ("defaults", json!({})),
        ("production", serde_saphyr::from_str(include_str!("../../../charts/nodegate/values-prod.yaml")).unwrap()),
        (
            "policies",
            json!({"policies": {"files": {"a.yaml": policy("a", rules), "b.yml": text}},
                   "labelFiles": {"accelerators/edgetpu": "kkohtaka.org/edgetpu\n", "example.com/a_b": "example.com/c\n"},
                   "stateVolume": {"configMap": {"name": "states"}}, "controller": {"enabled": false}}),
        ),
        (
            "fail",
            json!({"webhooks": {"validatingFailurePolicy": "Fail"},
                   "breakGlassGroups": ["it's \"quoted\" <&>", "nodegate:*", "system:team:*", "night-shift"],
                   "policies": {"files": {"a.yaml": policy("a", break_glass("ops")), "b.yaml": text}}}),
        ),
        ("cert-manager", json!({"tls": {"certManager": {"enabled": true}}})),
        (
            "own issuer",
            json!({"tls": {"certManager": {"enabled": true, "issuerRef": {"kind": "ClusterIssuer", "name": "ca"}}}}),
        ),
        (
            "own secret",
            json!({"tls": {"existingSecret": "mine", "caBundle": "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"},
                   "policies": {"existingConfigMap": "mine"}}),
        ),
        (
            "everything else",
            json!({"fullnameOverride": "other", "replicas": 1, "hostNetwork": true, "listenAddress": "[::]",
                   "ports": {"https": 10_250, "probes": 10_251}, "pendingTaint": {"mode": "always", "key": "example.com/new", "timeout": "20m", "release": false},
                   "image": {"registry": "unused.example", "digest": format!("sha256:{}", "0".repeat(64))}, "imagePullSecrets": [{"name": "pull"}],
                   "global": {"imageRegistry": "mirror.example:5000/all", "imagePullSecrets": ["everyone", {"name": "pull"}], "of": "others"},
                   "dnsPolicy": "ClusterFirstWithHostNet", "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
                   "strategy": {"type": "Recreate"}, "livenessProbe": {"periodSeconds": 30}, "readinessProbe": {"failureThreshold": 2},
                   "extraArgs": ["--cert-name=example.com"], "extraEnv": [{"name": "PERSIST_LABEL_PREFIX", "value": "x"}],
                   "podLabels": {"a": "b"}, "podAnnotations": {"a": "b"}, "service": {"annotations": {"a": "b"}},
                   "serviceAccount": {"annotations": {"a": "b"}}, "webhooks": {"annotations": {"a": "b"}},
                   "nodeSelector": {"a": "b"}, "affinity": {"nodeAffinity": {}}, "priorityClassName": "",
                   "topologySpreadConstraints": [{"topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
                   "podSecurityContext": {"runAsUser": null}}),
        ),
        (
            "controller",
            json!({"controller": {"identity": "name+providerID", "maxRemovals": 3, "writesPerSecond": 7, "resyncSeconds": 60}}),
        ),
        (
            "client auth",
            json!({"clientAuth": {"caSecret": "mine", "key": "bundle.pem", "names": ["api-server", "it's \"quoted\""]}}),
        ),
        ("client auth of a ConfigMap", json!({"clientAuth": {"caConfigMap": "mine"}})),
        (
            "network policy",
            json!({"networkPolicy": {"apiServer": ["192.0.2.10/32", "2001:db8::/64"],
                   "metrics": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]}}),
        ),
        ("network policy without pods", json!({"networkPolicy": {"exceptPods": ["10.244.0.0/16", "fd00::/48"]}})),
        ("inventories", json!({"inventories": {"credentials": {"cmdb": "mine"}, "requestsPerSecond": 7}})),
        (
            "tracing",
            json!({"tracing": {"endpoint": "https://collector.observability.svc:4318", "sampler": "parentbased_traceidratio", "ratio": 0.05,
                               "headersSecret": "mine", "headersKey": "otlp", "caConfigMap": "mine", "resourceAttributes": {"k8s.cluster.name": "it's \"50%\", a,b"}}}),
        ),
        ("no webhooks", json!({"webhooks": {"enabled": false}})),
        ("neither guard nor fence", json!({"guard": {"enabled": false, "fence": false}})),
        ("native policies", json!({"nativePolicies": {"enabled": true}})),
        (
            "monitoring",
            json!({"monitoring": {
                       "serviceMonitor": {"enabled": true, "namespace": "monitoring", "labels": {"release": "stack"}, "interval": "1m30s", "scrapeTimeout": "10s",
                                          "relabelings": [{"action": "labeldrop", "regex": "pod"}], "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": "process_.*"}]},
                       "prometheusRule": {"enabled": true, "namespace": "monitoring", "labels": {"release": "stack"}, "annotations": {"a": "b"}, "without": ["NodeMissingLabels"], "runbookPrefix": "https://git.example.com/nodegate/",
                                          "ruleLabels": {"team": "it's \"quoted\" {{ $labels.node }}"}, "extraGroups": [{"name": "more", "rules": [{"record": "a:b", "expr": "vector(1)"}]}]},
                       "dashboard": {"enabled": true, "namespace": "monitoring", "folder": "Nodes: {{ all }}", "annotations": {"a": "b"}}}}),
        ),
        (
            "pod monitor and no tests",
            json!({"monitoring": {"podMonitor": {"enabled": true}, "prometheusRule": {"enabled": true}, "dashboard": {"enabled": true, "labels": {"other": "1"}}},
                   "tests": {"enabled": false}, "rbac": {"aggregateToView": false}, "crds": {"install": false}}),
        ),
        (
            "common",
            json!({"namespaceOverride": "elsewhere", "commonLabels": {"team": "platform", "yes": "no"}, "commonAnnotations": {"example.com/owner": "it's \"quoted\": {{ x }}"},
                   "crds": {"keep": false}, "revisionHistoryLimit": 0, "webhooks": {"timeoutSeconds": {"mutating": 1, "validating": 30, "policies": 5}},
                   "policies": {"files": {"a.yaml": policy("a", json!({}))}}, "networkPolicy": {"apiServer": ["192.0.2.10/32"]},
                   "extraVolumes": [{"name": "prices", "configMap": {"name": "mine"}}], "extraVolumeMounts": [{"name": "prices", "mountPath": "/prices"}],
                   "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "raw", "annotations": {"as-is": "{{ $labels.node }}"}}},
                                    "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ include \"nodegate.fullname\" . }}-{{ .Values.replicas }}\n"]}),
        ),
    ])
}
