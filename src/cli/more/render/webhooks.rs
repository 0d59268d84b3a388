//! `nodegate render webhooks`: the mutating and validating webhook configurations.

use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::api::ObjectMeta;

use crate::cli::more::render::{Namespaced, document, namespaced};
use crate::cli::shared::failure_policy;
use crate::cli::shared::output;
use nodegate_policy::native::{CAN_MATTER, FailurePolicy, KUBELET, control_plane, guard_parameters};
use nodegate_stores::files::Sources;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("target").required(true))]
pub(super) struct WebhooksArgs {
    /// URL at which the API server reaches nodegate, such as https://10.0.0.5:8443
    #[arg(long, value_name = "URL", group = "target", value_parser = https_url)]
    url: Option<String>,
    /// Service in front of nodegate; the API server calls its port 443
    #[arg(long, value_name = "NS/NAME", group = "target", value_parser = namespaced)]
    service: Option<Namespaced>,
    /// CA certificate that the API server trusts for this connection (ca.crt of the certificate directory)
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// failurePolicy of the validating webhook. With Fail, writes by kubelets, the control plane and break-glass
    /// groups still pass while nodegate is unavailable
    #[arg(long, value_parser = failure_policy::parser(), default_value = "Ignore")]
    failure_policy: FailurePolicy,
    /// Policies to read break-glass groups from, whose writes pass while nodegate is unavailable, and to read whether
    /// annotations are governed
    #[arg(long = "policy", value_name = "PATH")]
    policies: Vec<PathBuf>,
    /// Group whose members may override every policy
    #[arg(long = "break-glass-group", value_name = "GROUP")]
    break_glass_groups: Vec<String>,
    /// Send every change of annotations to the validating webhook. Set this if NodePolicy objects in the cluster
    /// govern annotations
    #[arg(long)]
    govern_annotations: bool,
    /// nodegate's own service account, whose writes are never changed or judged
    #[arg(long, value_name = "NS/NAME", value_parser = namespaced)]
    service_account: Option<Namespaced>,
}

fn https_url(text: &str) -> Result<String, String> {
    let host = text
        .strip_prefix("https://")
        .ok_or_else(|| format!("{text:?} does not begin with https://, which the API server requires"))?;
    if host.is_empty() || host.contains(['/', '?', '#', '@']) {
        return Err(format!("{text:?} contains more than a host and a port; write https://HOST:PORT"));
    }
    Ok(text.to_owned())
}

/// Matches writes that can violate a policy: a label or taint changes,
const LABELS_OR_TAINTS: &str = r#"request.operation == "CREATE" || object.metadata.?labels.orValue({}) != oldObject.metadata.?labels.orValue({}) || object.?spec.?taints.orValue([]) != oldObject.?spec.?taints.orValue([])"#;
/// or an annotation of nodegate changes (the API server's CEL is slow in loops over many annotations, so it compares
/// the maps first, and beyond 1,000 annotations every change matches),
const OWN_ANNOTATIONS: &str = r#"object.metadata.?annotations != oldObject.metadata.?annotations && (object.metadata.?annotations.orValue({}).size() > 1000 || oldObject.metadata.?annotations.orValue({}).size() > 1000 || object.metadata.?annotations.orValue({}).exists(k, k.startsWith("nodegate.dev/") && !(k in oldObject.metadata.?annotations.orValue({}) && oldObject.metadata.annotations[k] == object.metadata.annotations[k])) || oldObject.metadata.?annotations.orValue({}).exists(k, k.startsWith("nodegate.dev/") && !(k in object.metadata.?annotations.orValue({}))))"#;
/// or, if policies govern annotations, any annotation changes.
const ANNOTATIONS: &str = r#"object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({})"#;

fn condition(name: &str, expression: impl Into<String>) -> MatchCondition {
    MatchCondition { name: name.to_owned(), expression: expression.into() }
}

/// How long the API server waits for an answer, in seconds.
const TIMEOUT_SECONDS: i32 = 2;

/// Renders both configurations as YAML documents.
pub(super) fn render(args: &WebhooksArgs) -> anyhow::Result<String> {
    let sources = Sources { policies: args.policies.clone(), ..Sources::default() };
    let mut groups = args.break_glass_groups.clone();
    let mut annotations = args.govern_annotations;
    let mut parameters = None;
    if !args.policies.is_empty() {
        let policies = sources.load().map_err(|errors| output::load_errors(&errors))?;
        groups.extend(policies.break_glass_groups());
        annotations |= policies.governs_annotations();
        parameters = Some(guard_parameters(&policies));
        let people = policies.break_glass_people();
        if args.failure_policy == FailurePolicy::Fail && !people.is_empty() {
            output::note(&format!(
                "note: while nodegate is unavailable, only break-glass groups can write; add these to a group: {}",
                people.join(", ")
            ));
        }
    }
    groups.sort();
    groups.dedup();
    for group in &groups {
        let inner = group.strip_suffix('*').unwrap_or(group);
        anyhow::ensure!(
            !inner.contains(['*', '?', '[', '{']) && (inner == group || !inner.contains('\\')),
            "break-glass group {group:?}: a match condition supports only exact names and a '*' at the end"
        );
    }
    let client = client_config(args)?;
    let mutating = MutatingWebhookConfiguration {
        metadata: ObjectMeta { name: Some("nodegate".to_owned()), ..ObjectMeta::default() },
        webhooks: Some(vec![mutating_webhook(args, &client)]),
    };
    let validating = ValidatingWebhookConfiguration {
        metadata: ObjectMeta {
            name: Some("nodegate".to_owned()),
            // The guard reads these parameters; with a cluster the leader keeps them up to date.
            annotations: parameters,
            ..ObjectMeta::default()
        },
        webhooks: Some(validating_webhooks(args, &client, &groups, annotations)),
    };
    let comment = "Generated by: nodegate render webhooks. Deleting this object always recovers a cluster.";
    Ok(format!("{}---\n{}", document(comment, &mutating)?, document(comment, &validating)?))
}

fn client_config(args: &WebhooksArgs) -> anyhow::Result<WebhookClientConfig> {
    let ca = args.ca_file.as_ref().map(|file| {
        let text = std::fs::read(file).with_context(|| format!("--ca-file {}", file.display()))?;
        let pem = String::from_utf8_lossy(&text).contains("-----BEGIN CERTIFICATE-----");
        anyhow::ensure!(pem, "--ca-file {}: contains no PEM certificate", file.display());
        Ok(ByteString(text))
    });
    Ok(WebhookClientConfig {
        ca_bundle: ca.transpose()?,
        service: args.service.as_ref().map(|service| ServiceReference {
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            path: None,
            port: Some(443),
        }),
        url: args.url.clone(),
    })
}

/// The same client configuration with a path.
fn at(client: &WebhookClientConfig, path: &str) -> WebhookClientConfig {
    let mut client = client.clone();
    if let Some(service) = &mut client.service {
        service.path = Some(path.to_owned());
    }
    client.url = client.url.map(|url| format!("{url}{path}"));
    client
}

fn rule(resources: &[&str]) -> RuleWithOperations {
    rule_of("", "v1", resources)
}

fn rule_of(group: &str, version: &str, resources: &[&str]) -> RuleWithOperations {
    let all = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    RuleWithOperations {
        api_groups: all(&[group]),
        api_versions: all(&[version]),
        operations: all(&["CREATE", "UPDATE"]),
        resources: all(resources),
        scope: Some("Cluster".to_owned()),
    }
}

/// Excludes nodegate's own writes, which are neither changed nor judged.
fn not_self(args: &WebhooksArgs) -> Option<MatchCondition> {
    args.service_account.as_ref().map(|account| {
        let user = format!("system:serviceaccount:{}:{}", account.namespace, account.name);
        condition("not-nodegate-itself", format!("request.userInfo.username != {user:?}"))
    })
}

fn mutating_webhook(args: &WebhooksArgs, client: &WebhookClientConfig) -> MutatingWebhook {
    let conditions = [Some(condition("can-matter", CAN_MATTER)), not_self(args)];
    MutatingWebhook {
        admission_review_versions: vec!["v1".to_owned()],
        client_config: at(client, "/mutate"),
        // The controller repairs whatever a missed call leaves undone. Nothing repairs a node that cannot join.
        failure_policy: Some("Ignore".to_owned()),
        match_conditions: Some(conditions.into_iter().flatten().collect()),
        match_policy: Some("Equivalent".to_owned()),
        name: "mutate.nodegate.dev".to_owned(),
        namespace_selector: None,
        object_selector: None,
        reinvocation_policy: Some("IfNeeded".to_owned()),
        rules: Some(vec![rule(&["nodes"])]),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
    }
}

fn validating_webhooks(
    args: &WebhooksArgs,
    client: &WebhookClientConfig,
    groups: &[String],
    annotations: bool,
) -> Vec<ValidatingWebhook> {
    let can_violate = format!("{LABELS_OR_TAINTS} || {}", if annotations { ANNOTATIONS } else { OWN_ANNOTATIONS });
    let webhook = |name: &str, failure_policy: &str, who: Option<MatchCondition>| {
        let not_joining =
            condition("not-a-kubelet-joining", format!(r#"!(request.operation == "CREATE" && {KUBELET})"#));
        let conditions = [Some(condition("can-violate", can_violate.clone())), Some(not_joining), not_self(args), who];
        ValidatingWebhook {
            admission_review_versions: vec!["v1".to_owned()],
            client_config: at(client, "/validate"),
            failure_policy: Some(failure_policy.to_owned()),
            match_conditions: Some(conditions.into_iter().flatten().collect()),
            match_policy: Some("Equivalent".to_owned()),
            name: name.to_owned(),
            namespace_selector: None,
            object_selector: None,
            rules: Some(vec![rule(&["nodes", "nodes/status"])]),
            side_effects: "None".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
        }
    };
    let mut webhooks = match args.failure_policy {
        FailurePolicy::Ignore => vec![webhook("validate.nodegate.dev", "Ignore", None)],
        FailurePolicy::Fail => {
            let spared = spared(groups);
            vec![
                webhook("validate.nodegate.dev", "Fail", Some(condition("not-spared", format!("!({spared})")))),
                webhook("validate-spared.nodegate.dev", "Ignore", Some(condition("spared", spared))),
            ]
        }
    };
    webhooks.push(policy_webhook(client));
    webhooks
}

/// How long the API server waits until a `NodePolicy` is compiled, in seconds. Longer than for a Node, because no
/// kubelet waits.
const POLICY_TIMEOUT_SECONDS: i32 = 10;

/// Refuses `NodePolicy` objects that do not compile.
///
/// Always `Ignore`: users must be able to repair policies while nodegate is unavailable, and a policy is compiled
/// again before it takes effect.
fn policy_webhook(client: &WebhookClientConfig) -> ValidatingWebhook {
    ValidatingWebhook {
        admission_review_versions: vec!["v1".to_owned()],
        client_config: at(client, "/validate"),
        failure_policy: Some("Ignore".to_owned()),
        match_conditions: None,
        match_policy: Some("Equivalent".to_owned()),
        name: "policies.nodegate.dev".to_owned(),
        namespace_selector: None,
        object_selector: None,
        rules: Some(vec![rule_of("nodegate.dev", "v1alpha1", &["nodepolicies"])]),
        side_effects: "None".to_owned(),
        timeout_seconds: Some(POLICY_TIMEOUT_SECONDS),
    }
}

/// Matches requesters whose writes pass while nodegate is unavailable, in CEL: kubelets, the control plane's
/// controllers, and members of break-glass groups.
fn spared(groups: &[String]) -> String {
    let always = format!("{KUBELET} || {}", control_plane());
    if groups.is_empty() {
        return always;
    }
    // As in `Identities`: a glob matches names that begin with `system:` only if it begins with `system:` itself.
    let of_group = |group: &String| match group.strip_suffix('*') {
        Some(prefix) if prefix.starts_with("system:") => format!("g.startsWith({prefix:?})"),
        Some(prefix) => format!("(g.startsWith({prefix:?}) && !g.startsWith(\"system:\"))"),
        None => format!("g == {group:?}"),
    };
    let tests = groups.iter().map(of_group).collect::<Vec<_>>().join(" || ");
    format!("{always} || request.userInfo.?groups.orValue([]).exists(g, {tests})")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use nodegate_policy::Identities;
    use nodegate_policy::cel::{Budget, Excerpt, Expression, Paths, RequestVariables, Scope, Variables, Yields};

    #[test]
    fn a_break_glass_group_means_the_same_to_judge_and_to_the_match_condition() {
        let patterns = [
            "*",
            "s*",
            "system*",
            "system:*",
            "system:team:*",
            "system:masters",
            "oncall",
            "on*",
            "it's \"so\" <&>",
            "a\\b",
        ];
        let groups = [
            "oncall",
            "on",
            "system:masters",
            "system:team:a",
            "system:authenticated",
            "systematic",
            "it's \"so\" <&>",
            "a\\b",
            "",
        ];
        let object = r#"{"metadata": {"name": "n"}}"#;
        let object = Excerpt::read(object, &Paths::Whole, &Budget::default()).unwrap().completed();
        let mut matched = 0;
        for (pattern, group) in patterns.iter().flat_map(|pattern| groups.iter().map(move |group| (*pattern, *group))) {
            let text = spared(&[pattern.to_owned()]);
            let expression = Expression::compile(&text, Scope::Write, Yields::Bool).unwrap();
            let groups = [group];
            let request =
                RequestVariables { username: "alice", groups: groups.to_vec(), ..RequestVariables::default() };
            let rendered = expression.evaluate_bool(&Variables::write(&object, None, Some(&request.value()))).unwrap();
            let judged = Identities::parse([pattern]).unwrap().contains(group);
            assert_eq!(rendered, judged, "{pattern:?} and {group:?}: {text}");
            matched += usize::from(judged);
        }
        assert!(matched > 15, "{matched}");
    }

    /// A node with ten thousand annotations, of which the last one has this value.
    fn annotated(value: &str) -> String {
        let annotations: Vec<String> = (0..10_000).map(|at| format!(r#""example.com/a{at}": "x""#)).collect();
        let annotations = annotations.join(", ");
        format!(r#"{{"metadata": {{"name": "n", "annotations": {{{annotations}, "last": "{value}"}}}}}}"#)
    }

    #[test]
    fn the_match_condition_for_annotations_loops_over_at_most_a_thousand() {
        let (old, same, changed) = (annotated("a"), annotated("a"), annotated("b"));
        let evaluated = |condition: &str, object: &str| {
            let expression = Expression::compile(condition, Scope::Write, Yields::Bool).unwrap();
            let object = Excerpt::read(object, &Paths::Whole, &Budget::default()).unwrap().completed();
            let old = Excerpt::read(&old, &Paths::Whole, &Budget::default()).unwrap().completed();
            let request = RequestVariables { username: "alice", ..RequestVariables::default() };
            let budget = Budget::brief();
            expression
                .evaluate_bool(&Variables::write(&object, Some(&old), Some(&request.value())).within(&budget))
                .map_err(|error| error.to_string())
        };
        assert_eq!(evaluated(OWN_ANNOTATIONS, &same), Ok(false), "a heartbeat");
        assert_eq!(evaluated(OWN_ANNOTATIONS, &changed), Ok(true));
        let loops = r#"object.metadata.annotations.exists(k, k.startsWith("nodegate.dev/"))"#;
        let exceeded = evaluated(loops, &same).unwrap_err();
        assert!(exceeded.contains("steps"), "a loop over all of them: {exceeded}");
    }
}
