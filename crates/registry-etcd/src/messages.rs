//! The messages of etcd's API, version 3, as far as they are used: what Millpond does not look at is left out, and skipped
//! when it arrives. The numbers are those of `api/etcdserverpb/rpc.proto`, `api/mvccpb/kv.proto` and
//! `api/authpb/auth.proto` of etcd; they are the same in 3.4 and 3.7.

/// What every answer begins with.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// Of the store when the request was done.
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

/// A key as the store has it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub version: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    /// 0 for none.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// Reads the keys from `key` up to `range_end`, which is not among them; `key` alone if that is empty.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// 0 for all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
    /// 0 for the newest.
    #[prost(int64, tag = "4")]
    pub revision: i64,
    #[prost(bool, tag = "9")]
    pub count_only: bool,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// Whether the limit left some out.
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    /// 0 for none.
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct DeleteRangeResponse {
    #[prost(int64, tag = "2")]
    pub deleted: i64,
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Step", tags = "1, 2, 3")]
    pub step: Option<Step>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(super) enum Step {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct ResponseOp {
    #[prost(oneof = "StepResult", tags = "1, 2, 3")]
    pub result: Option<StepResult>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(super) enum StepResult {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(Nothing),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeResponse),
}

/// How the value that a comparison names must stand to the key's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum CompareResult {
    Equal = 0,
    Greater = 1,
}

/// What of a key is compared. A key that is absent has 0 in each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum CompareTarget {
    Version = 0,
    Create = 1,
    Mod = 2,
    Value = 3,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Compare {
    #[prost(enumeration = "CompareResult", tag = "1")]
    pub result: i32,
    #[prost(enumeration = "CompareTarget", tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(oneof = "Compared", tags = "4, 5, 6, 7")]
    pub with: Option<Compared>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(super) enum Compared {
    #[prost(int64, tag = "4")]
    Version(i64),
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct CompactionRequest {
    #[prost(int64, tag = "1")]
    pub revision: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum EventType {
    Put = 0,
    Delete = 1,
}

/// One change of one key. Of a key that was deleted only its name and the revision of that are told.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Event {
    #[prost(enumeration = "EventType", tag = "1")]
    pub kind: i32,
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub create: Option<WatchCreateRequest>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    /// Whether to be told the revision now and then when nothing changes.
    #[prost(bool, tag = "4")]
    pub progress_notify: bool,
    /// Whether a large revision may come in parts.
    #[prost(bool, tag = "8")]
    pub fragment: bool,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// Where it is not 0: the revision asked for is gone, and history begins here.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// Whether more of the same revision follows.
    #[prost(bool, tag = "7")]
    pub fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct LeaseGrantRequest {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub ttl: i64,
    #[prost(int64, tag = "2")]
    pub id: i64,
}

/// Names a lease: to revoke it, to keep it alive, to ask how long it lives.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct LeaseRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

/// How long a lease lives that was granted or kept alive.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct LeaseResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Seconds; no less than was asked for. 0 where there is no lease to be kept alive.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct LeaseTimeToLiveResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Seconds left; -1 where there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl: i64,
    /// Seconds it lives without being kept alive.
    #[prost(int64, tag = "4")]
    pub granted_ttl: i64,
}

/// That something was done: history was cut off, or a lease revoked.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct DoneResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub token: String,
}

/// A message without anything that is looked at: asks a member how it is, and who the others are; tells that a key was written.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Nothing {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub version: String,
    /// Bytes of its store, what is free in it included: that is what counts for the quota.
    #[prost(int64, tag = "3")]
    pub db_size: i64,
    /// 0 where it knows of none.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// Alarms, and that it has no leader.
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    /// Bytes; 0 where the version does not tell.
    #[prost(int64, tag = "12")]
    pub db_size_quota: i64,
}

/// A member of etcd.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct Member {
    /// Where clients reach it, as URLs. Empty until it was started once.
    #[prost(string, repeated, tag = "4")]
    pub client_urls: Vec<String>,
    /// It only follows, and answers no reads.
    #[prost(bool, tag = "5")]
    pub is_learner: bool,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(super) struct MemberListResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub members: Vec<Member>,
}
