//! Between our words and etcd's.
//!
//! Every key of ours stands in etcd behind a prefix, so that several clusters can share one etcd and a role can be given
//! the keys of one. Revisions, versions and leases are signed there; what does not fit never was.

use super::messages::{
    self, CompareResult, CompareTarget, Compared, DeleteRangeRequest, EventType, PutRequest, RangeRequest,
    RequestOp, ResponseOp, Step, StepResult, TxnRequest, TxnResponse,
};
use registry::{Compare, Event, KeyValue, LeaseId, Operation, OperationResult, Revision, Txn, TxnResult};

/// Keys of one read: several reads of one revision show more.
pub(super) const KEYS_PER_READ: i64 = 5000;

/// What etcd answered and cannot have meant.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Nonsense(pub String);

fn nonsense<T>(what: impl Into<String>) -> Result<T, Nonsense> {
    Err(Nonsense(what.into()))
}

pub(super) fn signed(number: u64) -> i64 {
    // Nothing has the largest: it is never equal.
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> Result<u64, Nonsense> {
    u64::try_from(number).or_else(|_| nonsense("a negative number"))
}

pub(super) fn revision(number: i64) -> Result<Revision, Nonsense> {
    unsigned(number).map(Revision)
}

/// A lease as etcd numbers it; `None` if it cannot be one of etcd's.
pub(super) fn lease_number(lease: LeaseId) -> Option<i64> {
    i64::try_from(lease.0).ok().filter(|number| *number > 0)
}

/// The part of etcd's keys that is one registry's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Space(pub String);

impl Space {
    /// Where a key of ours stands.
    pub(super) fn key(&self, key: &str) -> Vec<u8> {
        [self.0.as_bytes(), key.as_bytes()].concat()
    }

    /// Where the keys of a prefix of ours end.
    pub(super) fn end(&self, prefix: &str) -> Vec<u8> {
        let mut end = self.key(prefix);
        // Text never ends in 0xff, so that this never carries; and the space is never empty.
        *end.last_mut().expect("a space has a name") += 1;
        end
    }

    /// A key of ours by where it stands.
    fn own(&self, key: Vec<u8>) -> Result<String, Nonsense> {
        let key = String::from_utf8(key).or_else(|_| nonsense("a key that is not text"))?;
        match key.strip_prefix(&self.0) {
            Some(own) => Ok(own.to_owned()),
            None => nonsense(format!("key {key:?}, which was not asked for")),
        }
    }

    pub(super) fn entry(&self, entry: messages::KeyValue) -> Result<KeyValue, Nonsense> {
        let lease = Some(LeaseId(unsigned(entry.lease)?)).filter(|lease| lease.0 != 0);
        Ok(KeyValue {
            key: self.own(entry.key)?,
            value: entry.value.into(),
            create_revision: revision(entry.create_revision)?,
            mod_revision: revision(entry.mod_revision)?,
            version: unsigned(entry.version)?,
            lease,
        })
    }

    pub(super) fn entries(&self, entries: Vec<messages::KeyValue>) -> Result<Vec<KeyValue>, Nonsense> {
        entries.into_iter().map(|entry| self.entry(entry)).collect()
    }

    pub(super) fn event(&self, event: messages::Event) -> Result<Event, Nonsense> {
        let kind = EventType::try_from(event.kind);
        match (kind, event.kv) {
            (Ok(EventType::Put), Some(entry)) => self.entry(entry).map(Event::Put),
            (Ok(EventType::Delete), Some(entry)) => {
                Ok(Event::Delete { key: self.own(entry.key)?, revision: revision(entry.mod_revision)? })
            }
            _ => nonsense("a change that is none"),
        }
    }

    pub(super) fn get(&self, key: &str) -> RangeRequest {
        RangeRequest { key: self.key(key), ..RangeRequest::default() }
    }

    /// All keys of a prefix.
    pub(super) fn range(&self, prefix: &str) -> RangeRequest {
        RangeRequest { key: self.key(prefix), range_end: self.end(prefix), ..RangeRequest::default() }
    }

    /// The least that etcd can be asked of this space, answered like any other read.
    pub(super) fn probe(&self) -> RangeRequest {
        RangeRequest { count_only: true, ..self.get("millpond") }
    }

    fn compare(&self, compare: &Compare) -> messages::Compare {
        let (target, with) = match compare {
            Compare::Exists(_) | Compare::Absent(_) => (CompareTarget::Create, Compared::CreateRevision(0)),
            Compare::ModRevision(_, revision) => {
                (CompareTarget::Mod, Compared::ModRevision(signed(revision.0)))
            }
            Compare::Value(_, value) => (CompareTarget::Value, Compared::Value(value.as_bytes().to_vec())),
            Compare::Version(_, version) => (CompareTarget::Version, Compared::Version(signed(*version))),
        };
        let is_there = matches!(compare, Compare::Exists(_));
        let result = if is_there { CompareResult::Greater } else { CompareResult::Equal };
        messages::Compare {
            result: result.into(),
            target: target.into(),
            key: self.key(compare.key()),
            with: Some(with),
        }
    }

    fn operation(&self, operation: &Operation) -> Step {
        match operation {
            Operation::Put { key, value, lease } => Step::Put(PutRequest {
                key: self.key(key),
                value: value.as_bytes().to_vec(),
                lease: lease.map_or(0, |lease| signed(lease.0)),
            }),
            Operation::Delete { key } => Step::Delete(DeleteRangeRequest { key: self.key(key) }),
            Operation::Get { key } => Step::Range(self.get(key)),
            Operation::Range { prefix } => Step::Range(self.range(prefix)),
        }
    }

    /// A transaction. One without any step has a read in either branch: etcd answers one that has none from what a
    /// member happens to know, which can be old.
    pub(super) fn txn(&self, txn: &Txn) -> TxnRequest {
        let is_empty = txn.then.is_empty() && txn.otherwise.is_empty();
        let branch = |operations: &[Operation]| {
            let steps = operations.iter().map(|operation| self.operation(operation));
            let fresh = is_empty.then(|| Step::Range(self.probe()));
            steps.chain(fresh).map(|step| RequestOp { step: Some(step) }).collect()
        };
        TxnRequest {
            compare: txn.compares.iter().map(|compare| self.compare(compare)).collect(),
            success: branch(&txn.then),
            failure: branch(&txn.otherwise),
        }
    }

    /// What a transaction did.
    pub(super) fn txn_result(&self, txn: &Txn, answer: TxnResponse) -> Result<TxnResult, Nonsense> {
        let TxnResponse { header, succeeded, responses } = answer;
        let operations = if succeeded { &txn.then } else { &txn.otherwise };
        let is_empty = txn.then.is_empty() && txn.otherwise.is_empty();
        if responses.len() != operations.len() + usize::from(is_empty) {
            return nonsense(format!("{} results of {} steps", responses.len(), operations.len()));
        }
        let results =
            operations.iter().zip(responses).map(|(operation, response)| self.result(operation, response));
        Ok(TxnResult {
            succeeded,
            revision: revision(header.unwrap_or_default().revision)?,
            results: results.collect::<Result<_, _>>()?,
        })
    }

    fn result(&self, operation: &Operation, response: ResponseOp) -> Result<OperationResult, Nonsense> {
        Ok(match (operation, response.result) {
            (Operation::Put { .. }, Some(StepResult::Put(_))) => OperationResult::Put,
            (Operation::Delete { .. }, Some(StepResult::Delete(answer))) => {
                OperationResult::Deleted(answer.deleted > 0)
            }
            (Operation::Get { .. }, Some(StepResult::Range(answer))) => {
                OperationResult::Got(self.entries(answer.kvs)?.pop())
            }
            (Operation::Range { .. }, Some(StepResult::Range(answer))) => {
                OperationResult::Range(self.entries(answer.kvs)?)
            }
            _ => return nonsense("the result of another step"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn space() -> Space {
        Space("/millpond/".to_owned())
    }

    #[test]
    fn keys_of_others_are_never_ours() {
        let space = space();
        assert_eq!(space.key("a"), b"/millpond/a");
        assert_eq!((space.end("a/"), space.end("")), (b"/millpond/a0".to_vec(), b"/millpond0".to_vec()));
        let found = |key: &[u8]| {
            space.entry(messages::KeyValue { key: key.to_vec(), ..messages::KeyValue::default() })
        };
        assert_eq!(found(b"/millpond/a").map(|entry| entry.key), Ok("a".to_owned()));
        assert!(found(b"/other/a").is_err());
        assert!(found(b"/millpond/\xff").is_err());
    }

    #[test]
    fn a_transaction_without_steps_reads_so_that_it_is_answered_afresh() {
        let only_compares = Txn::new().when(Compare::Absent("a".to_owned()));
        let request = space().txn(&only_compares);
        assert_eq!((request.success.len(), request.failure.len()), (1, 1));
        let answer = TxnResponse {
            header: Some(messages::ResponseHeader { revision: 7, ..Default::default() }),
            succeeded: true,
            responses: vec![ResponseOp {
                result: Some(StepResult::Range(messages::RangeResponse::default())),
            }],
        };
        let result = space().txn_result(&only_compares, answer.clone()).expect("it makes sense");
        assert_eq!((result.revision, result.results), (Revision(7), vec![]));
        let one_branch = only_compares.then(Operation::get("a"));
        assert_eq!(space().txn(&one_branch).failure.len(), 0, "one step is enough for that");
        assert!(space().txn_result(&one_branch, TxnResponse { responses: vec![], ..answer }).is_err());
    }

    #[test]
    fn the_largest_transaction_stays_within_what_etcd_takes() {
        use registry::{BYTES_PER_TXN_MAX, KEY_BYTES_MAX, OPERATIONS_PER_TXN_MAX};
        // The longest name that a space may have.
        let space = Space("/".repeat(256));
        let key = |index: usize| format!("{index:0>KEY_BYTES_MAX$}");
        let mut txn = Txn::new();
        for index in 0..OPERATIONS_PER_TXN_MAX {
            txn = txn.when(Compare::Absent(key(index))).then(Operation::put(key(index), "x"));
            txn = txn.otherwise(Operation::get(key(index)));
        }
        let value_bytes = BYTES_PER_TXN_MAX - (3 * KEY_BYTES_MAX + 1) * OPERATIONS_PER_TXN_MAX;
        txn.then[0] = Operation::put(key(0), vec![0; value_bytes + 1]);
        txn.check().expect("it is within the limits");
        let bytes = space.txn(&txn).encoded_len();
        assert!(bytes <= 3 << 19, "{bytes} bytes; etcd takes 1.5 MiB unless told otherwise");
    }

    #[test]
    fn numbers_that_etcd_cannot_have_are_never_equal() {
        let compare = space().compare(&Compare::ModRevision("a".to_owned(), Revision(u64::MAX)));
        assert_eq!(compare.with, Some(Compared::ModRevision(i64::MAX)));
        assert_eq!((lease_number(LeaseId(u64::MAX)), lease_number(LeaseId(0))), (None, None));
        assert_eq!(lease_number(LeaseId(7)), Some(7));
    }
}
