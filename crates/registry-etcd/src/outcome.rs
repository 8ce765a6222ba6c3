//! What etcd's refusals mean for what was asked.
//!
//! Which of them leave nothing changed is known from etcd's source, not from the gRPC code: several errors share a code,
//! and 3.4 sends some without one. So the words count, and what is not known here leaves open whether it was done.

use tonic::{Code, ConnectError, Status};

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It was not sent, or refused before anybody acted on it: another member may be asked.
    NotDone(String),
    /// A lease that it names is not alive. Nothing was changed.
    LeaseNotFound,
    /// The lease that was to be granted is there.
    LeaseExists,
    /// The revision asked for is gone.
    Compacted,
    /// The revision asked for is not there yet.
    InFuture,
    /// It was refused, and would be again. Nothing was changed.
    Refused(String),
    /// It may have been done.
    Unknown(String),
}

/// Refusals that come before anything is proposed to the members. The credentials' are among them: a new link brings
/// new ones.
const NOT_DONE: [&str; 9] = [
    "no leader",
    "too many requests",
    "raft proposal dropped",
    "not capable",
    "not supported for learner",
    "invalid auth token",
    "user name is empty",
    "revision of auth store is old",
    "user name not found",
];

/// Refusals that have a meaning for what was asked.
const MEANT: [(&str, Failure); 4] = [
    ("requested lease not found", Failure::LeaseNotFound),
    ("lease already exists", Failure::LeaseExists),
    ("required revision has been compacted", Failure::Compacted),
    ("required revision is a future revision", Failure::InFuture),
];

/// What says that a full store did not take a change that it was asked for, or did take it: etcd answers both with the
/// same words.
const FULL: &str = "database space exceeded";

pub(super) fn classify(status: &Status) -> Failure {
    let words = status.message();
    let says = |what: &str| words.contains(what);
    let reason = || words.to_owned();
    if was_not_sent(status) || NOT_DONE.iter().any(|what| says(what)) {
        return Failure::NotDone(if words.is_empty() { "it cannot be reached".to_owned() } else { reason() });
    }
    if let Some((_, meant)) = MEANT.iter().find(|(what, _)| says(what)) {
        return meant.clone();
    }
    if says(FULL) {
        return Failure::Unknown(format!(
            "{words}: compact and defragment it (etcdctl compact, etcdctl defrag), or give it more with \
             --quota-backend-bytes, then run `etcdctl alarm disarm`"
        ));
    }
    match status.code() {
        Code::InvalidArgument | Code::PermissionDenied | Code::FailedPrecondition | Code::DataLoss => {
            Failure::Refused(reason())
        }
        Code::Unauthenticated => Failure::NotDone(reason()),
        code => Failure::Unknown(if words.is_empty() { code.to_string() } else { reason() }),
    }
}

/// Whether there was no connection to send it over.
fn was_not_sent(status: &Status) -> bool {
    let mut causes = std::iter::successors(std::error::Error::source(status), |&error| error.source());
    causes.any(|error| error.is::<ConnectError>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_done_is_never_told_as_refused() {
        for status in [
            Status::unavailable("etcdserver: request timed out, possibly due to previous leader failure"),
            Status::unavailable("etcdserver: leader changed"),
            Status::unavailable("etcdserver: server stopped"),
            Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
            Status::unavailable("transport error"),
            Status::cancelled("grpc: the client connection is closing"),
            Status::deadline_exceeded("context deadline exceeded"),
            Status::internal("what nobody ever saw"),
            Status::unknown(""),
        ] {
            assert!(matches!(classify(&status), Failure::Unknown(_)), "{status}");
        }
    }

    #[test]
    fn refusals_are_known_by_their_words() {
        for (status, expected) in [
            (Status::not_found("etcdserver: requested lease not found"), Failure::LeaseNotFound),
            (Status::failed_precondition("etcdserver: lease already exists"), Failure::LeaseExists),
            (
                Status::out_of_range("etcdserver: mvcc: required revision has been compacted"),
                Failure::Compacted,
            ),
            (
                Status::out_of_range("etcdserver: mvcc: required revision is a future revision"),
                Failure::InFuture,
            ),
        ] {
            assert_eq!(classify(&status), expected);
        }
        for status in [
            Status::unavailable("etcdserver: no leader"),
            Status::unknown("etcdserver: too many requests"),
            Status::unauthenticated("etcdserver: invalid auth token"),
            Status::invalid_argument("etcdserver: revision of auth store is old"),
        ] {
            assert!(matches!(classify(&status), Failure::NotDone(_)), "{status}");
        }
        for status in [
            Status::permission_denied("etcdserver: permission denied"),
            Status::invalid_argument("etcdserver: request is too large"),
        ] {
            assert!(matches!(classify(&status), Failure::Refused(_)), "{status}");
        }
    }
}
