//! Rights that nodegate's account lacks: one log line each, with the command that grants it.
//!
//! A missing right fails many requests, again and again, and each part reports its own. The API server's answer names the
//! right (`k8s.io/apiserver/pkg/authorization`, `ForbiddenErrorMessage`), so the log has that instead.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// How long a right is not named again.
const QUIET: Duration = Duration::from_secs(3600);
/// Maximum number of rights that are remembered; nodegate needs about forty.
const RIGHTS_MAX: usize = 256;

/// The parts of the program that make requests to the API server. Others log texts of callers, who must not be able to have a right of
/// their choice named.
const REQUESTERS: [&str; 7] = [
    "kube_",
    "nodegate::cli::run::serve::cluster",
    "nodegate_controller",
    "nodegate_stores::certificates",
    "nodegate_stores::inventory::stored",
    "nodegate_stores::machines",
    "nodegate_stores::state",
];

/// A right that an account lacks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Right {
    user: String,
    verb: String,
    /// With its subresource, such as `nodes/status`.
    resource: String,
    group: String,
    namespace: Option<String>,
}

impl Right {
    /// The right that an error of the API server names, in whatever other text.
    fn named_in(text: &str) -> Option<Self> {
        // Errors are also logged as values, with escaped quotation marks.
        let text = text.replace('\\', "");
        let (_, rest) = text.split_once("is forbidden: User \"")?;
        let (user, rest) = rest.split_once("\" cannot ")?;
        let (verb, rest) = rest.split_once(" resource \"")?;
        let (resource, rest) = rest.split_once("\" in API group \"")?;
        let (group, rest) = rest.split_once('"')?;
        let namespace = rest.strip_prefix(" in the namespace \"").and_then(|rest| rest.split_once('"'));
        let is_word = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'/' | b'_'))
        };
        let words = [verb, resource].into_iter().chain(namespace.map(|(name, _)| name));
        // It becomes part of a command.
        if !words.chain([group].into_iter().filter(|group| !group.is_empty())).all(is_word)
            || !user.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b':' | b'@' | b'_'))
        {
            return None;
        }
        Some(Self {
            user: user.to_owned(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            group: group.to_owned(),
            namespace: namespace.map(|(name, _)| name.to_owned()),
        })
    }

    /// The commands that grant it.
    fn command(&self) -> String {
        let Self { user, verb, resource, group, namespace } = self;
        let (of_kind, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let mut kind = of_kind.to_owned();
        for (mark, part) in [(".", group.as_str()), ("/", subresource)] {
            if !part.is_empty() {
                kind = format!("{kind}{mark}{part}");
            }
        }
        let name = format!("nodegate-{verb}-{}", resource.replace('/', "-"));
        let subject = match user.strip_prefix("system:serviceaccount:") {
            Some(account) => format!("--serviceaccount={account}"),
            None => format!("--user={user}"),
        };
        let (scope, role) = match namespace {
            Some(namespace) => (format!(" -n {namespace}"), "role"),
            None => (String::new(), "clusterrole"),
        };
        format!(
            "kubectl{scope} create {role} {name} --verb={verb} --resource={kind} && kubectl{scope} create {role}binding {name} --{role}={name} {subject}"
        )
    }
}

/// Leaves out what a missing right explains, and names the right instead.
#[derive(Default)]
pub(crate) struct MissingRights(Mutex<HashMap<Right, Instant>>);

impl MissingRights {
    /// Whether to name a right now.
    fn is_news(&self, right: &Right, now: Instant) -> bool {
        // Every update is complete, so a panic elsewhere leaves it consistent.
        let mut told = self.0.lock();
        if told.get(right).is_some_and(|at| now.saturating_duration_since(*at) < QUIET) {
            return false;
        }
        told.retain(|_, at| now.saturating_duration_since(*at) < QUIET);
        if told.len() < RIGHTS_MAX {
            told.insert(right.clone(), now);
        }
        true
    }
}

impl<S: Subscriber> Layer<S> for MissingRights {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let target = event.metadata().target();
        if *event.metadata().level() > Level::WARN || !REQUESTERS.iter().any(|part| target.starts_with(part)) {
            return true;
        }
        let mut texts = Texts::default();
        event.record(&mut texts);
        let Some(right) = Right::named_in(&texts.0) else { return true };
        if self.is_news(&right, Instant::now()) {
            let Right { user, verb, resource, group, namespace } = &right;
            let (namespace, command) = (namespace.as_deref(), right.command());
            tracing::warn!(
                user,
                verb,
                resource,
                group,
                namespace,
                command,
                "nodegate's account lacks a right that the chart gives it: upgrade the chart, or run the command; retrying"
            );
        }
        // Who looks into nodegate wants to see all of them.
        LevelFilter::current() >= LevelFilter::DEBUG
    }
}

/// The message of an event and its error. Other fields are names and values that others choose.
#[derive(Default)]
struct Texts(String);

impl Visit for Texts {
    fn record_str(&mut self, field: &Field, value: &str) {
        if matches!(field.name(), "message" | "error") {
            self.0.push_str(value);
            self.0.push('\n');
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if matches!(field.name(), "message" | "error") {
            let _ = writeln!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    const LEASE: &str = r#"leases.coordination.k8s.io "nodegate" is forbidden: User "system:serviceaccount:nodegate:nodegate" cannot get resource "leases" in API group "coordination.k8s.io" in the namespace "nodegate""#;
    const STATUS: &str = r#"nodes is forbidden: User "alice@example.com" cannot patch resource "nodes/status" in API group "" at the cluster scope"#;

    #[test]
    fn the_command_grants_the_right_that_the_answer_names() {
        let command = |text: &str| Right::named_in(text).map(|right| right.command());
        let lease = "kubectl -n nodegate create role nodegate-get-leases --verb=get --resource=leases.coordination.k8s.io && \
             kubectl -n nodegate create rolebinding nodegate-get-leases --role=nodegate-get-leases --serviceaccount=nodegate:nodegate";
        assert_eq!(command(LEASE).unwrap(), lease);
        assert_eq!(command(&format!("Api({LEASE:?})")).unwrap(), lease, "an error as a value");
        let status = "kubectl create clusterrole nodegate-patch-nodes-status --verb=patch --resource=nodes/status && \
             kubectl create clusterrolebinding nodegate-patch-nodes-status --clusterrole=nodegate-patch-nodes-status --user=alice@example.com";
        assert_eq!(command(STATUS).unwrap(), status);
        for other in [
            r#"nodes "n1" is forbidden: ValidatingAdmissionPolicy 'x' denied request: no"#,
            r#"x is forbidden: User "a; rm -rf /" cannot get resource "nodes" in API group """#,
            r#"x is forbidden: User "a" cannot get resource "nodes`id`" in API group """#,
            "timed out",
        ] {
            assert_eq!(command(other), None, "{other}");
        }
    }

    #[test]
    fn a_missing_right_is_one_line_and_other_errors_are_logged() {
        #[derive(Clone, Default)]
        struct Written(Arc<Mutex<Vec<String>>>);
        impl<S: Subscriber> Layer<S> for Written {
            fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
                let mut texts = Texts::default();
                event.record(&mut texts);
                self.0.lock().push(texts.0);
            }
        }
        let written = Written::default();
        let told = MissingRights::default();
        assert!(told.is_news(&Right::named_in(LEASE).unwrap(), Instant::now()));
        let subscriber = tracing_subscriber::registry().with(written.clone()).with(LevelFilter::INFO).with(told);
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..100 {
                tracing::warn!(target: "nodegate_controller::leader", error = LEASE, "could not renew");
                tracing::error!(target: "nodegate_controller::leader", "Api({LEASE:?})");
            }
            tracing::warn!(target: "nodegate_controller::leader", error = "timed out", "could not renew");
            // Whoever calls the webhook chooses these texts.
            tracing::warn!(target: "nodegate_webhook::admission::respond", user = STATUS, error = STATUS, "a large review");
            tracing::warn!(target: "nodegate_controller::reconcile", node = STATUS, "could not write");
        });
        let written = written.0.lock();
        assert_eq!(written.len(), 3, "{written:?}");
        assert!(written[0].contains("timed out") && written[1].contains("a large review"), "{written:?}");
        assert!(written[2].contains("could not write"), "no right is named: {written:?}");
    }
}
