//! Formats errors of the API server and its client.

use std::error::Error;

use kube::core::Status;

/// Describes an error of `kube`, or of a library on top of it, in one sentence.
///
/// If the API server answered, returns only its message, because kube's own text repeats the whole answer in debug
/// format. Otherwise returns the chain of causes, outermost first, without repetitions.
pub fn in_words(error: &(dyn Error + 'static)) -> String {
    let chain: Vec<_> = std::iter::successors(Some(error), |error| Error::source(*error)).collect();
    if let Some(status) = chain.iter().find_map(|cause| answer(*cause)) {
        return format!("the API server answered {}: {}", status.code, status.message);
    }
    let mut words: Vec<String> = Vec::new();
    for cause in chain {
        let text = cause.to_string();
        // Most errors include their cause in their text; only the rest is new.
        let of_cause = cause.source().map(ToString::to_string).unwrap_or_default();
        let own = text.strip_suffix(&of_cause).unwrap_or(&text).trim_end_matches([' ', ':']);
        let is_kubes_label = cause.is::<kube::Error>() && !own.contains(' ');
        if !own.is_empty() && !is_kubes_label && words.last().is_none_or(|last| last != own) {
            words.push(own.to_owned());
        }
    }
    words.join(": ")
}

/// Whether a watch has to list everything again, because the API server no longer has the version that it continues from.
/// The watch does so by itself.
pub fn is_expired(error: &kube::runtime::watcher::Error) -> bool {
    let chain = std::iter::successors(Some(error as &(dyn Error + 'static)), |error| Error::source(*error));
    chain.filter_map(answer).any(|status| status.code == 410)
}

/// Formats an error of a command with its whole context, outermost first; an error of `kube` is formatted by
/// [`in_words`].
pub fn with_context(error: &anyhow::Error) -> String {
    let mut words: Vec<String> = Vec::new();
    for cause in error.chain() {
        if cause.is::<kube::Error>() || cause.is::<kube::runtime::watcher::Error>() {
            words.push(in_words(cause));
            break;
        }
        words.push(cause.to_string());
    }
    words.join(": ")
}

fn answer<'e>(cause: &'e (dyn Error + 'static)) -> Option<&'e Status> {
    if let Some(kube::Error::Api(status)) = cause.downcast_ref() {
        return Some(status);
    }
    cause.downcast_ref().or_else(|| cause.downcast_ref::<Box<Status>>().map(Box::as_ref))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn an_answer_of_the_api_server_is_included_once() {
        let status = || Box::new(Status::failure("namespaces \"x\" not found", "NotFound").with_code(404));
        let said = "the API server answered 404: namespaces \"x\" not found";
        assert_eq!(in_words(&kube::Error::Api(status())), said);
        let watching = kube::runtime::watcher::Error::InitialListFailed(kube::Error::Api(status()));
        assert_eq!(in_words(&watching), said);
        assert_eq!(in_words(&kube::runtime::watcher::Error::WatchError(status())), said);
        assert!(!is_expired(&kube::runtime::watcher::Error::WatchError(status())));
        let expired = || Box::new(Status::failure("too old resource version: 1 (2)", "Expired").with_code(410));
        assert!(is_expired(&kube::runtime::watcher::Error::WatchError(expired())));
        assert!(is_expired(&kube::runtime::watcher::Error::WatchStartFailed(kube::Error::Api(expired()))));
    }

    #[test]
    fn the_context_of_a_command_precedes_the_answer_of_the_api_server() {
        let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "Connection refused");
        let error = anyhow::Error::new(kube::Error::Service(Box::new(refused))).context("could not list nodes");
        assert_eq!(with_context(&error), "could not list nodes: Connection refused");
        assert_eq!(with_context(&anyhow::anyhow!("inner").context("outer")), "outer: inner");
    }

    #[test]
    fn causes_are_listed_from_the_outermost_to_the_innermost_without_repetition() {
        #[derive(Debug, thiserror::Error)]
        #[error("tcp connect error")]
        struct Connecting(#[source] io::Error);
        let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, "Connection refused");
        let error = kube::Error::Service(Box::new(Connecting(refused())));
        assert_eq!(in_words(&error), "tcp connect error: Connection refused");
        assert_eq!(in_words(&kube::Error::ReadEvents(refused())), "Error reading events stream: Connection refused");
    }
}
