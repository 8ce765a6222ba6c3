//! One member of etcd at a time, for as long as it proves useful.
//!
//! A member is taken after it has answered a read that needs a majority: so it is known to be up, to have a leader, to
//! know us and to be of the right etcd, and a change is never the first thing sent to it. It is given up when it does not
//! answer such a read in time, when what was sent over it was lost, and when it refuses our credentials, which a new link
//! brings anew. What was given up is never used again, so that it is always known over which connection an answer came.

use super::EtcdOptions;
use super::convert::Space;
use super::members::Members;
use super::messages::{
    AuthenticateRequest, AuthenticateResponse, MemberListResponse, Nothing, RangeResponse, ResponseHeader,
};
use super::outcome::{Failure, classify};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_stream::Stream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

/// Larger than any answer: all keys of a prefix may come in one.
const ANSWER_BYTES_MAX: usize = 512 << 20;
/// How long a member has to connect and to prove itself.
const OPEN_LIMIT: Duration = Duration::from_secs(3);
/// How long it has for a read that proves it.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// A member that said nothing for so long is asked whether it is there.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How often a connection with watches is asked whether it lives. An etcd closes one that asks more often than each 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_LIMIT: Duration = Duration::from_secs(5);
/// The pause before the next member is tried; doubled each time up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How often it is asked who the members are.
const LEARN_EVERY: Duration = Duration::from_secs(30);
/// A member that served so long was a good one: the pause starts small again.
const STEADY: Duration = Duration::from_secs(5);

/// A call of etcd's API.
pub(super) type Method = &'static str;

pub(super) const RANGE: Method = "/etcdserverpb.KV/Range";
pub(super) const TXN: Method = "/etcdserverpb.KV/Txn";
pub(super) const COMPACT: Method = "/etcdserverpb.KV/Compact";
pub(super) const LEASE_GRANT: Method = "/etcdserverpb.Lease/LeaseGrant";
pub(super) const LEASE_REVOKE: Method = "/etcdserverpb.Lease/LeaseRevoke";
pub(super) const LEASE_KEEP_ALIVE: Method = "/etcdserverpb.Lease/LeaseKeepAlive";
pub(super) const LEASE_TIME_TO_LIVE: Method = "/etcdserverpb.Lease/LeaseTimeToLive";
pub(super) const WATCH: Method = "/etcdserverpb.Watch/Watch";
const MEMBER_LIST: Method = "/etcdserverpb.Cluster/MemberList";
pub(super) const MEMBER_STATUS: Method = "/etcdserverpb.Maintenance/Status";
const AUTHENTICATE: Method = "/etcdserverpb.Auth/Authenticate";

/// What is known of the etcd, whichever member told it.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Its id; 0 until one was seen.
    cluster: AtomicU64,
    /// The newest revision that was seen.
    newest: AtomicI64,
    members: Members,
}

impl Known {
    /// The newest revision so far: what is asked from now on and shows less comes from an etcd that went back.
    pub(super) fn newest(&self) -> i64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Where members are, as far as that is known.
    pub(super) fn endpoints(&self, options: &EtcdOptions) -> Vec<String> {
        self.members.endpoints(options)
    }

    /// Takes the header of an answer to what was asked when `newest` was known.
    ///
    /// # Errors
    /// Why the answer must not be believed.
    pub(super) fn take(&self, header: &ResponseHeader, newest: i64) -> Result<(), String> {
        let seen = self.cluster.compare_exchange(0, header.cluster_id, Ordering::AcqRel, Ordering::Acquire);
        if let Err(cluster) = seen
            && cluster != header.cluster_id
        {
            return Err(format!(
                "it is of etcd cluster {:x}, and the one used so far is {cluster:x}; correct the list of endpoints",
                header.cluster_id
            ));
        }
        if header.revision < newest {
            return Err(format!(
                "it is at revision {}, and {newest} was there already; if it was restored from a backup, start \
                 every millpond process again",
                header.revision
            ));
        }
        self.newest.fetch_max(header.revision, Ordering::AcqRel);
        Ok(())
    }
}

/// A member that proved itself.
pub(super) struct Link {
    operations: Channel,
    /// Apart, so that large answers do not hold up what watches show.
    streams: Channel,
    token: Option<MetadataValue<Ascii>>,
    answered: Mutex<Instant>,
    suspected: Notify,
    ended: watch::Sender<Option<String>>,
}

impl Link {
    async fn open(options: &EtcdOptions, endpoint: &str, known: &Known) -> Result<Link, String> {
        let connect = |is_for_streams: bool| {
            let endpoint = options.endpoint(endpoint)?.tcp_nodelay(true).connect_timeout(OPEN_LIMIT);
            Ok::<Endpoint, String>(match is_for_streams {
                true => endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_LIMIT),
                false => endpoint,
            })
        };
        let failed = |error: tonic::transport::Error| with_causes(&error);
        let (operations, streams) = (connect(false)?, connect(true)?);
        let (operations, streams) =
            tokio::try_join!(operations.connect(), streams.connect()).map_err(failed)?;
        let mut link = Link {
            operations,
            streams,
            token: None,
            answered: Mutex::new(Instant::now()),
            suspected: Notify::new(),
            ended: watch::Sender::new(None),
        };
        if let Some(user) = &options.user {
            let request = AuthenticateRequest { name: user.name.clone(), password: user.password.clone() };
            let answer: AuthenticateResponse =
                link.ask(AUTHENTICATE, request).await.map_err(|status| status.message().to_owned())?;
            link.token =
                Some(answer.token.parse().map_err(|_| "it gave a token that is not text".to_owned())?);
        }
        link.prove(&options.space, known).await?;
        Ok(link)
    }

    /// A read that needs a majority of the members.
    async fn prove(&self, space: &Space, known: &Known) -> Result<(), String> {
        let newest = known.newest();
        let probe = timeout(PROBE_LIMIT, self.ask::<RangeResponse>(RANGE, space.probe())).await;
        match probe {
            Ok(Ok(answer)) => known.take(&answer.header.unwrap_or_default(), newest),
            Ok(Err(status)) => Err(match classify(&status) {
                Failure::NotDone(reason) | Failure::Refused(reason) | Failure::Unknown(reason) => reason,
                other => format!("it answered a read with {other:?}"),
            }),
            Err(_) => Err(format!("it did not answer within {} s", PROBE_LIMIT.as_secs())),
        }
    }

    /// Asks for one answer.
    pub(super) async fn ask<Answer: prost::Message + Default + 'static>(
        &self,
        method: Method,
        question: impl prost::Message + 'static,
    ) -> Result<Answer, Status> {
        let mut grpc = grpc(&self.operations);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let (path, codec) = (PathAndQuery::from_static(method), ProstCodec::default());
        let answer = grpc.unary(self.request(question), path, codec).await?.into_inner();
        self.has_answered();
        Ok(answer)
    }

    /// Opens a stream of answers to a stream of questions, the first of which must be there at once: etcd says nothing
    /// before it.
    pub(super) async fn converse<Answer: prost::Message + Default + 'static>(
        &self,
        method: Method,
        questions: impl Stream<Item: prost::Message + 'static> + Send + 'static,
    ) -> Result<Streaming<Answer>, Status> {
        let mut grpc = grpc(&self.streams);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let (path, codec) = (PathAndQuery::from_static(method), ProstCodec::default());
        Ok(grpc.streaming(self.request(questions), path, codec).await?.into_inner())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // A member without a leader refuses at once and ends its watches, instead of being silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    pub(super) fn has_answered(&self) {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn silent_since(&self) -> Instant {
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody waits for long: the member must prove itself again.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// It is not used any more.
    pub(super) fn give_up(&self, reason: &str) {
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            if is_first {
                *ended = Some(reason.to_owned());
            }
            is_first
        });
    }

    pub(super) fn is_used(&self) -> bool {
        self.ended.borrow().is_none()
    }

    /// Waits until it is given up; answers why.
    pub(super) async fn ended(&self) -> String {
        let mut ended = self.ended.subscribe();
        let reason = ended.wait_for(Option::is_some).await.expect("the sender is borrowed");
        reason.clone().expect("that was waited for")
    }

    /// Learns who the members are. What is not told is known from before.
    async fn learn(&self, options: &EtcdOptions, known: &Known) {
        let asked = self.ask::<MemberListResponse>(MEMBER_LIST, Nothing {});
        if let Ok(Ok(answer)) = timeout(PROBE_LIMIT, asked).await {
            known.members.take(&answer, options);
        }
    }

    /// Asks it for a proof whenever there is reason to, and who the others are, until it is given up; answers why.
    async fn watched_over(&self, options: &EtcdOptions, known: &Known) -> String {
        let mut look = tokio::time::interval(LEARN_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                reason = self.ended() => return reason,
                _ = look.tick() => {
                    tokio::select! {
                        reason = self.ended() => return reason,
                        () = self.learn(options, known) => continue,
                    }
                }
                () = self.suspected.notified() => {}
                () = tokio::time::sleep_until(self.silent_since() + SILENCE_MAX) => {
                    if self.silent_since().elapsed() < SILENCE_MAX {
                        continue;
                    }
                }
            }
            if let Err(reason) = self.prove(&options.space, known).await {
                self.give_up(&reason);
            }
        }
    }
}

/// Asks a member something over a connection of its own, which a member that proves nothing may answer too.
pub(super) async fn ask_once<Answer: prost::Message + Default + 'static>(
    options: &EtcdOptions,
    endpoint: &str,
    method: Method,
    question: impl prost::Message + 'static,
) -> Result<Answer, String> {
    let endpoint = options.endpoint(endpoint)?.tcp_nodelay(true);
    let channel = endpoint.connect().await.map_err(|error| with_causes(&error))?;
    let mut grpc = grpc(&channel);
    grpc.ready().await.map_err(|error| with_causes(&error))?;
    let (path, codec) = (PathAndQuery::from_static(method), ProstCodec::default());
    let answer = grpc.unary(Request::new(question), path, codec).await;
    answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
}

fn grpc(channel: &Channel) -> Grpc<Channel> {
    Grpc::new(channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX)
}

pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}

/// Whether there is a member to ask.
#[derive(Clone)]
pub(super) enum State {
    Down(String),
    Up(Arc<Link>),
}

/// Keeps a link to one of the members, another one whenever it is given up.
pub(super) async fn stay_linked(options: Arc<EtcdOptions>, known: Arc<Known>, state: watch::Sender<State>) {
    let mut pause = PAUSE_MIN;
    // Spreads clients over the members.
    let first = uuid::Uuid::new_v4().as_u128() as usize % options.endpoints.len();
    for turn in (0..usize::MAX).cycle().skip(first) {
        let mut endpoints = known.endpoints(&options);
        let endpoint = endpoints.swap_remove(turn % endpoints.len());
        let opened = timeout(OPEN_LIMIT, Link::open(&options, &endpoint, &known)).await;
        let reason =
            match opened.unwrap_or_else(|_| Err(format!("nothing within {} s", OPEN_LIMIT.as_secs()))) {
                Ok(link) => {
                    let since = Instant::now();
                    let link = Arc::new(link);
                    state.send_replace(State::Up(link.clone()));
                    let reason = link.watched_over(&options, &known).await;
                    if since.elapsed() >= STEADY {
                        pause = PAUSE_MIN;
                    }
                    reason
                }
                Err(reason) => match options.complaint() {
                    Some(complaint) => format!("{complaint} ({reason})"),
                    None => reason,
                },
            };
        tracing::debug!(endpoint, reason, "not linked to etcd");
        state.send_replace(State::Down(format!("{endpoint}: {reason}")));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_etcd_and_one_that_went_back_are_not_believed() {
        let known = Known::default();
        let header = |cluster_id, revision| ResponseHeader { cluster_id, member_id: 1, revision };
        assert_eq!(known.take(&header(7, 10), known.newest()), Ok(()));
        let refusal = known.take(&header(8, 11), known.newest()).expect_err("it is another one");
        assert!(refusal.contains("etcd cluster 8") && refusal.contains("endpoints"), "{refusal}");
        let refusal = known.take(&header(7, 9), known.newest()).expect_err("it went back");
        assert!(refusal.contains("revision 9") && refusal.contains("10"), "{refusal}");
        // What was asked before a newer answer came may show less.
        let asked_at = known.newest();
        assert_eq!(known.take(&header(7, 12), known.newest()), Ok(()));
        assert_eq!(known.take(&header(7, 11), asked_at), Ok(()));
        assert_eq!(known.newest(), 12);
    }
}
