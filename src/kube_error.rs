//! What went wrong between here and the API server, in words.

use std::error::Error;

use kube::core::Status;

/// One sentence about an error of `kube` or of what is built upon it.
///
/// What the API server answers is said as it said it, and nothing else; kube's own text repeats the whole answer as it
/// is debugged. Otherwise the causes are said, the outermost first, and none of them twice.
pub fn in_words(error: &(dyn Error + 'static)) -> String {
    let chain: Vec<_> = std::iter::successors(Some(error), |error| Error::source(*error)).collect();
    if let Some(status) = chain.iter().find_map(|cause| answer(*cause)) {
        return format!("the API server answers {}: {}", status.code, status.message);
    }
    let mut words: Vec<String> = Vec::new();
    for cause in chain {
        let text = cause.to_string();
        // Most errors say their cause as well; of those only what they say themselves is new.
        let of_cause = cause.source().map(ToString::to_string).unwrap_or_default();
        let own = text.strip_suffix(&of_cause).unwrap_or(&text).trim_end_matches([' ', ':']);
        let is_kubes_label = cause.is::<kube::Error>() && !own.contains(' ');
        if !own.is_empty() && !is_kubes_label && words.last().is_none_or(|last| last != own) {
            words.push(own.to_owned());
        }
    }
    words.join(": ")
}

/// An error of a command with all that was said about it, the outermost first; from an error of `kube` on [`in_words`].
pub(crate) fn with_context(error: &anyhow::Error) -> String {
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
    fn what_the_api_server_answers_is_said_once() {
        let status = || Box::new(Status::failure("namespaces \"x\" not found", "NotFound").with_code(404));
        let said = "the API server answers 404: namespaces \"x\" not found";
        assert_eq!(in_words(&kube::Error::Api(status())), said);
        let watching = kube::runtime::watcher::Error::InitialListFailed(kube::Error::Api(status()));
        assert_eq!(in_words(&watching), said);
        assert_eq!(in_words(&kube::runtime::watcher::Error::WatchError(status())), said);
    }

    #[test]
    fn what_a_command_did_is_said_before_what_the_api_server_answered() {
        let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "Connection refused");
        let error = anyhow::Error::new(kube::Error::Service(Box::new(refused))).context("nodes could not be listed");
        assert_eq!(with_context(&error), "nodes could not be listed: Connection refused");
        assert_eq!(with_context(&anyhow::anyhow!("inner").context("outer")), "outer: inner");
    }

    #[test]
    fn causes_are_said_from_the_outermost_to_the_innermost_and_none_twice() {
        #[derive(Debug, thiserror::Error)]
        #[error("tcp connect error")]
        struct Connecting(#[source] io::Error);
        let refused = || io::Error::new(io::ErrorKind::ConnectionRefused, "Connection refused");
        let error = kube::Error::Service(Box::new(Connecting(refused())));
        assert_eq!(in_words(&error), "tcp connect error: Connection refused");
        assert_eq!(in_words(&kube::Error::ReadEvents(refused())), "Error reading events stream: Connection refused");
    }
}
