//! A registry in etcd.
//!
//! One member is used at a time ([`link`]); operations wait for one that proved itself, up to the timeout. What was not
//! sent, or refused before anybody acted on it, is asked of the next member. What may have been done is asked again if
//! that is harmless, else reported as of unknown outcome. Leases live in etcd and survive any member. A watch resumes
//! after the last change that it showed, with any member ([`watch`]).
//!
//! Where etcd's words are weaker than ours they are made up for: a transaction without steps reads, since it would be
//! answered from what one member knows; a watch begins one revision early, since etcd takes one that begins where history
//! was cut off; and an etcd that was put back to an older state is not believed.

mod certificates;
mod convert;
mod link;
mod members;
mod messages;
mod options;
mod outcome;
mod troubles;
mod watch;

pub use certificates::EtcdTls;
pub use options::{EtcdOptions, EtcdUrlError, EtcdUser};

use async_trait::async_trait;
use convert::{KEYS_PER_READ, Nonsense, lease_number, revision, signed};
use link::{Known, Link, Method, State};
use messages::{
    CompactionRequest, DoneResponse, LeaseGrantRequest, LeaseRequest, LeaseResponse, LeaseTimeToLiveResponse,
    RangeRequest, RangeResponse, ResponseHeader, TxnResponse,
};
use outcome::{Failure, classify};
use registry::RegistryError;
use registry::implement::{Answer, Caller, Request};
use registry::{LeaseId, Operation, Range, RegistryTrouble, Revision, Txn, Watch};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use watch::EtcdWatch;

/// What is harmless to repeat has so long with one member.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(3);
/// Who waits longer wants to know whether the member is still there.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause before another member is asked what one did not do.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a read of many keys begins anew because history was cut off behind it.
const READS_MAX: usize = 3;

/// A registry in etcd, for as long as this is not dropped.
pub struct EtcdRegistry {
    client: Arc<Client>,
}

impl EtcdRegistry {
    /// A client that looks for a member in the background; operations wait for it up to the timeout of `options`.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn new(options: EtcdOptions) -> EtcdRegistry {
        let options = Arc::new(options);
        let known = Arc::new(Known::default());
        let (sender, state) = tokio::sync::watch::channel(State::Down("not connected yet".to_owned()));
        let task = tokio::spawn(link::stay_linked(options.clone(), known.clone(), sender));
        EtcdRegistry { client: Arc::new(Client { options, known, state, task }) }
    }

    /// A client that has seen etcd answer.
    ///
    /// # Errors
    /// [`RegistryError::Unreachable`] when no member proves itself within the timeout of `options`.
    pub async fn connect(options: EtcdOptions) -> Result<EtcdRegistry, RegistryError> {
        let registry = EtcdRegistry::new(options);
        let client = &registry.client;
        let linked = client.link(Some(Instant::now() + client.options.timeout)).await;
        linked.map_err(|failure| client.failed(failure))?;
        Ok(registry)
    }
}

/// An answer of etcd's that tells the revision it shows.
trait Answered: prost::Message + Default + 'static {
    fn header(&self) -> ResponseHeader;
}

macro_rules! answered {
    ($($answer:ty),* $(,)?) => {$(
        impl Answered for $answer {
            fn header(&self) -> ResponseHeader {
                self.header.clone().unwrap_or_default()
            }
        }
    )*};
}
answered!(RangeResponse, TxnResponse, LeaseResponse, LeaseTimeToLiveResponse, DoneResponse);

/// What the registry and its watches share. The last of them ends the link.
struct Client {
    options: Arc<EtcdOptions>,
    known: Arc<Known>,
    state: tokio::sync::watch::Receiver<State>,
    task: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    /// A member that proved itself, as soon as there is one.
    async fn link(&self, deadline: Option<Instant>) -> Result<Arc<Link>, Failure> {
        let mut state = self.state.clone();
        let mut reason = "not connected".to_owned();
        loop {
            match &*state.borrow_and_update() {
                State::Up(link) if link.is_used() => return Ok(link.clone()),
                State::Up(_) => "the connection was given up".clone_into(&mut reason),
                State::Down(down) => reason.clone_from(down),
            }
            let changed = match deadline {
                Some(deadline) => tokio::time::timeout_at(deadline, state.changed()).await,
                None => Ok(state.changed().await),
            };
            match changed {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Failure::NotDone("nobody looks for a member any more".to_owned())),
                Err(_) => return Err(Failure::NotDone(reason)),
            }
        }
    }

    /// Asks until there is an answer that may be believed, or the time is over. What is not `repeatable` is asked again
    /// only if it was certainly not done.
    async fn ask<Answer: Answered>(
        &self,
        method: Method,
        question: impl prost::Message + Clone + 'static,
        repeatable: bool,
    ) -> Result<Answer, Failure> {
        let ask = |link: Arc<Link>| {
            let question = question.clone();
            async move { link.ask(method, question).await }
        };
        self.attempt(repeatable, ask).await
    }

    /// As [`Self::ask`], by any means.
    async fn attempt<Answer: Answered, Attempt: Future<Output = Result<Answer, tonic::Status>>>(
        &self,
        repeatable: bool,
        ask: impl Fn(Arc<Link>) -> Attempt,
    ) -> Result<Answer, Failure> {
        let deadline = Instant::now() + self.options.timeout;
        loop {
            let link = self.link(Some(deadline)).await?;
            let newest = self.known.newest();
            let until = if repeatable { deadline.min(Instant::now() + ATTEMPT_LIMIT) } else { deadline };
            let failure = match answer_of(&link, ask(link.clone()), until).await {
                Ok(answer) => match self.known.take(&answer.header(), newest) {
                    Ok(()) => return Ok(answer),
                    Err(reason) => Failure::Unknown(reason),
                },
                Err(failure) => failure,
            };
            let (reason, is_over) = match failure {
                Failure::NotDone(reason) => (reason, false),
                Failure::Unknown(reason) => (reason, !repeatable),
                // The member is as good as any.
                other => return Err(other),
            };
            link.give_up(&reason);
            if is_over {
                return Err(Failure::Unknown(reason));
            }
            if Instant::now() + PAUSE >= deadline {
                return Err(Failure::NotDone(reason));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn unreachable(&self, reason: &str) -> RegistryError {
        RegistryError::Unreachable {
            registry: self.options.to_string(),
            waited_ms: self.options.timeout.as_millis() as u64,
            reason: reason.to_owned(),
        }
    }

    fn nonsense(&self, nonsense: Nonsense) -> RegistryError {
        RegistryError::Protocol { registry: self.options.to_string(), reason: nonsense.0 }
    }

    /// A failure that has no meaning of its own for what was asked.
    fn failed(&self, failure: Failure) -> RegistryError {
        let registry = self.options.to_string();
        match failure {
            Failure::NotDone(reason) => self.unreachable(&reason),
            Failure::Unknown(reason) => RegistryError::OutcomeUnknown { registry, reason },
            Failure::Refused(reason) => RegistryError::Refused { registry, reason },
            other => self.nonsense(Nonsense(format!("{other:?}, which makes no sense here"))),
        }
    }

    async fn read(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        self.ask(link::RANGE, request, true).await
    }

    /// All keys of a prefix as of one revision, in several reads if they are many.
    async fn range(&self, prefix: &str) -> Result<Range, RegistryError> {
        let space = &self.options.space;
        for _ in 0..READS_MAX {
            let (shown, entries) = match self.read_pages(prefix).await {
                Ok(pages) => pages,
                Err(Failure::Compacted) => continue,
                Err(failure) => return Err(self.failed(failure)),
            };
            let range = || Ok(Range { revision: revision(shown)?, entries: space.entries(entries)? });
            return range().map_err(|nonsense| self.nonsense(nonsense));
        }
        Err(self.unreachable("its history is cut off faster than it can be read"))
    }

    async fn read_pages(&self, prefix: &str) -> Result<(i64, Vec<messages::KeyValue>), Failure> {
        let whole = RangeRequest { limit: KEYS_PER_READ, ..self.options.space.range(prefix) };
        let first = self.read(whole.clone()).await?;
        let shown = first.header().revision;
        let (mut entries, mut more) = (first.kvs, first.more);
        while let Some(last) = entries.last().filter(|_| more) {
            let key = [&last.key[..], &[0]].concat();
            let page = self.read(RangeRequest { key, revision: shown, ..whole.clone() }).await?;
            more = page.more;
            entries.extend(page.kvs);
        }
        Ok((shown, entries))
    }

    async fn txn(&self, txn: Txn, repeatable: bool) -> Result<Answer, RegistryError> {
        let space = &self.options.space;
        let leases = txn.then.iter().chain(&txn.otherwise).filter_map(|operation| match operation {
            Operation::Put { lease, .. } => *lease,
            _ => None,
        });
        let leases: Vec<_> = leases.collect();
        if let Some(lease) = leases.iter().find(|lease| lease_number(**lease).is_none()) {
            return Err(RegistryError::LeaseNotFound { lease: *lease });
        }
        match self.ask(link::TXN, space.txn(&txn), repeatable).await {
            Ok(answer) => {
                space.txn_result(&txn, answer).map(Answer::Txn).map_err(|nonsense| self.nonsense(nonsense))
            }
            Err(Failure::LeaseNotFound) => {
                let mut lost = leases.first().copied();
                for lease in leases {
                    if self.ttl(lease).await?.is_none() {
                        lost = Some(lease);
                        break;
                    }
                }
                Err(lost.map_or_else(
                    || self.failed(Failure::LeaseNotFound),
                    |lease| RegistryError::LeaseNotFound { lease },
                ))
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// How long a lease lives without being kept alive; `None` if it does not live.
    async fn ttl(&self, lease: LeaseId) -> Result<Option<Duration>, RegistryError> {
        let Some(id) = lease_number(lease) else { return Ok(None) };
        let asked = self.ask(link::LEASE_TIME_TO_LIVE, LeaseRequest { id }, true).await;
        let answer: LeaseTimeToLiveResponse = asked.map_err(|failure| self.failed(failure))?;
        Ok((answer.ttl >= 0).then(|| Duration::from_secs(answer.granted_ttl.unsigned_abs())))
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<Answer, RegistryError> {
        // A number of our own tells one that was granted already, when the answer to that was lost.
        let lease = LeaseId::random();
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let question = LeaseGrantRequest { ttl: signed(seconds), id: signed(lease.0) };
        let granted: Result<LeaseResponse, _> = self.ask(link::LEASE_GRANT, question, true).await;
        let ttl = match granted {
            Ok(answer) => Duration::from_secs(answer.ttl.unsigned_abs()),
            Err(Failure::LeaseExists) => {
                self.ttl(lease).await?.ok_or(RegistryError::LeaseNotFound { lease })?
            }
            Err(failure) => return Err(self.failed(failure)),
        };
        Ok(Answer::Granted { lease, ttl_ms: ttl.as_millis() as u64 })
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<Answer, RegistryError> {
        let gone = RegistryError::LeaseNotFound { lease };
        let Some(id) = lease_number(lease) else { return Err(gone) };
        let ask = |link: Arc<Link>| async move {
            let question = tokio_stream::once(LeaseRequest { id });
            let mut answers = link.converse(link::LEASE_KEEP_ALIVE, question).await?;
            let answer: Option<LeaseResponse> = answers.message().await?;
            link.has_answered();
            answer.ok_or_else(|| tonic::Status::unavailable("it closed the connection"))
        };
        match self.attempt(true, ask).await {
            Ok(answer) if answer.ttl > 0 => Ok(Answer::Done),
            Ok(_) | Err(Failure::LeaseNotFound) => Err(gone),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<Answer, RegistryError> {
        let gone = RegistryError::LeaseNotFound { lease };
        let Some(id) = lease_number(lease) else { return Err(gone) };
        let attempts = std::sync::atomic::AtomicU32::new(0);
        let ask = |link: Arc<Link>| {
            attempts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move { link.ask::<DoneResponse>(link::LEASE_REVOKE, LeaseRequest { id }).await }
        };
        match self.attempt(true, ask).await {
            Ok(_) => Ok(Answer::Done),
            // The first attempt's answer was lost, and it did what was asked.
            Err(Failure::LeaseNotFound) if attempts.into_inner() > 1 => Ok(Answer::Done),
            Err(Failure::LeaseNotFound) => Err(gone),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    async fn compact(&self, upto: Revision) -> Result<Answer, RegistryError> {
        let question = CompactionRequest { revision: signed(upto.0) };
        if upto == Revision(0) {
            return Ok(Answer::Done);
        }
        match self.ask::<DoneResponse>(link::COMPACT, question, true).await {
            Ok(_) | Err(Failure::Compacted) => Ok(Answer::Done),
            Err(Failure::InFuture) => {
                let newest = self.read(self.options.space.probe()).await;
                let newest = newest.map_err(|failure| self.failed(failure))?.header().revision;
                let latest = revision(newest).map_err(|nonsense| self.nonsense(nonsense))?;
                Err(RegistryError::RevisionInFuture { asked: upto, latest })
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }
}

/// The answer of a member, if it comes in time and while the member is used.
async fn answer_of<Answer>(
    link: &Link,
    attempt: impl Future<Output = Result<Answer, tonic::Status>>,
    until: Instant,
) -> Result<Answer, Failure> {
    tokio::pin!(attempt);
    let patience = tokio::time::sleep(PATIENCE);
    tokio::pin!(patience);
    let mut is_patient = true;
    loop {
        tokio::select! {
            answer = &mut attempt => return answer.map_err(|status| classify(&status)),
            reason = link.ended() => return Err(Failure::Unknown(reason)),
            () = tokio::time::sleep_until(until) => return Err(Failure::Unknown("no answer in time".to_owned())),
            () = &mut patience, if is_patient => {
                link.suspect();
                is_patient = false;
            }
        }
    }
}

#[async_trait]
impl Caller for EtcdRegistry {
    fn place(&self) -> String {
        self.client.options.to_string()
    }

    async fn call(&self, request: Request) -> Result<Answer, RegistryError> {
        request.check()?;
        let client = &self.client;
        let repeatable = request.repeatable();
        match request {
            Request::Get { key } => {
                let found = client.read(client.options.space.get(&key)).await;
                let found = found.map_err(|failure| client.failed(failure))?.kvs;
                let found = client.options.space.entries(found);
                found.map(|mut found| Answer::Got(found.pop())).map_err(|nonsense| client.nonsense(nonsense))
            }
            Request::Range { prefix } => client.range(&prefix).await.map(Answer::Range),
            Request::Txn(txn) => client.txn(txn, repeatable).await,
            Request::LeaseGrant { ttl_ms } => client.lease_grant(Duration::from_millis(ttl_ms)).await,
            Request::LeaseKeepAlive { lease } => client.lease_keep_alive(lease).await,
            Request::LeaseRevoke { lease } => client.lease_revoke(lease).await,
            Request::Compact { revision } => client.compact(revision).await,
        }
    }

    async fn find_troubles(&self) -> Vec<RegistryTrouble> {
        let (options, known) = (&self.client.options, &self.client.known);
        troubles::troubles(options, known.endpoints(options)).await
    }

    async fn start_watch(&self, prefix: String, start: Revision) -> Result<Box<dyn Watch>, RegistryError> {
        EtcdWatch::start(self.client.clone(), prefix, start).await.map(|watch| Box::new(watch) as _)
    }
}
