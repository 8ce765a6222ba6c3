//! What is served on a connection: the registry to owners, a desk to everybody.

use crate::protocol::{
    CALL, CALL_BYTES_MAX, Failure, MAP, QUESTION_BYTES_MAX, SILENCE_MAX, WATCH, WatchQuestion, line, path_of,
};
use axum::body::{Body, Bytes};
use axum::extract::Request as HttpRequest;
use axum::extract::{DefaultBodyLimit, FromRequestParts};
use axum::http::{StatusCode, header, request::Parts};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use cluster::{
    Attach, Attachments, ChangeVolumes, Clerk, Detach, Drives, Fenced, GiveUp, Grant, HttpServers, Identify,
    KeepAlive, Lock, Locks, Manager, Metadata, Open, Own, Question, Resume, Revoke, StandsStill, Unlock,
    Watchers,
};
use registry::implement::{PROBE, Request, check_prefix, perform};
use registry::{Operation, Registry, RegistryError, Revision, Txn, Watch};
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

/// How long the registry may take to answer, so that a stream goes on that has nothing to say.
const PROBE_LIMIT: Duration = SILENCE_MAX;
/// For so long one answer is as good as another.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How long a request may take until it is read and answered: who says half of one must not hold a place.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// All paths. Each request bears, as an extension, the [`Clerk`] who answers whoever has that connection.
pub fn router() -> Router {
    let registry = Router::new()
        .route(CALL, post(call))
        .route(WATCH, post(watch))
        .layer(DefaultBodyLimit::max(CALL_BYTES_MAX));
    let desk = Router::new().route(MAP, post(map));
    let desk = with::<Identify>(with::<Grant>(with::<KeepAlive>(with::<Revoke>(desk))));
    let desk =
        with::<Attach>(with::<Resume>(with::<Detach>(with::<Fenced>(with::<StandsStill>(with::<
            Attachments,
        >(desk))))));
    let desk = with::<Open>(with::<Watchers>(with::<Own>(with::<GiveUp>(desk))));
    let desk = with::<Locks>(with::<Lock>(with::<Unlock>(desk)));
    let desk = with::<ChangeVolumes>(with::<Metadata>(desk));
    let desk = with::<Manager>(with::<HttpServers>(with::<Drives>(desk)));
    let desk = desk.layer(DefaultBodyLimit::max(QUESTION_BYTES_MAX));
    registry.merge(desk).layer(Extension(Pulse::default()))
}

/// A layer for what is served on connections: a request that is not read and answered in time is answered with that.
pub async fn in_time(request: HttpRequest, next: Next) -> Response {
    let answered = timeout(REQUEST_LIMIT, next.run(request)).await;
    // What was asked may be done all the same, so this is none of 4xx.
    answered.unwrap_or_else(|_| StatusCode::SERVICE_UNAVAILABLE.into_response())
}

fn with<Q: Question>(router: Router) -> Router {
    router.route(&path_of::<Q>(), post(answer::<Q>))
}

async fn answer<Q: Question>(Extension(clerk): Extension<Clerk>, Json(question): Json<Q>) -> Response {
    told(clerk.ask(question).await.map_err(Failure::from))
}

async fn map(Extension(clerk): Extension<Clerk>, Extension(pulse): Extension<Pulse>) -> Response {
    match clerk.follow_map().await {
        // Who hears no more begins anew, and is told why then.
        Ok((range, changes)) => {
            follow(range, changes, clerk, pulse, |next| next.ok().map(|batch| line(&batch)))
        }
        Err(error) => told::<()>(Err(Failure::Registry(error))),
    }
}

/// The registry, if that is an owner's connection: looked at before the rest of a request is read.
struct OfOwner(Arc<dyn Registry>);

impl<S: Send + Sync> FromRequestParts<S> for OfOwner {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<OfOwner, Response> {
        let clerk = Extension::<Clerk>::from_request_parts(parts, state).await;
        let Extension(clerk) = clerk.map_err(IntoResponse::into_response)?;
        clerk.registry().cloned().map(OfOwner).map_err(|error| told::<()>(Err(error.into())))
    }
}

async fn call(OfOwner(registry): OfOwner, Json(request): Json<Request>) -> Response {
    told(perform(&*registry, request).await.map_err(Failure::Registry))
}

async fn watch(
    OfOwner(registry): OfOwner,
    Extension(clerk): Extension<Clerk>,
    Extension(pulse): Extension<Pulse>,
    Json(question): Json<WatchQuestion>,
) -> Response {
    let WatchQuestion { prefix, start } = question;
    let watching = async {
        check_prefix(&prefix)?;
        check_start(&*registry, start).await?;
        registry.watch(&prefix, start).await
    };
    match watching.await {
        Ok(changes) => follow(changes.position(), changes, clerk, pulse, |next| match next {
            // The server is going down; the client will find it again and resume.
            Err(RegistryError::Closed) => None,
            next => Some(line(&next)),
        }),
        Err(error) => told::<()>(Err(Failure::Registry(error))),
    }
}

/// Whether a watch may go on from there. Who followed another registry, or this one before it was set back, has seen revisions
/// that this one did not come to: it must read anew, and not wait for these.
async fn check_start(registry: &dyn Registry, start: Revision) -> Result<(), RegistryError> {
    if start.0 <= 1 {
        return Ok(());
    }
    let now = registry.txn(Txn::new().then(Operation::get(PROBE))).await?.revision;
    match start > now.next() {
        true => Err(RegistryError::Compacted { asked: start, compacted: now }),
        false => Ok(()),
    }
}

fn told<A: Serialize>(answer: Result<A, Failure>) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, line(&answer)).into_response()
}

/// When the registry was asked last that then answered, by whichever stream.
#[derive(Clone, Default)]
struct Pulse(Arc<Mutex<Option<Instant>>>);

impl Pulse {
    /// Whether the registry answers. A watch does not tell: it waits for its registry as long as it takes.
    async fn beats(&self, clerk: &Clerk) -> bool {
        let probing = async {
            let mut answered = self.0.lock().await;
            if answered.is_none_or(|asked| asked.elapsed() >= PROBE_EVERY) {
                let asked = Instant::now();
                clerk.probe().await?;
                *answered = Some(asked);
            }
            Ok::<(), RegistryError>(())
        };
        matches!(timeout(PROBE_LIMIT, probing).await, Ok(Ok(())))
    }
}

/// Tells what comes first, and every change until one cannot be told, the registry does not answer any more, or the other side
/// is gone. What is not read is not looked for.
fn follow(
    first: impl Serialize,
    mut changes: Box<dyn Watch>,
    clerk: Clerk,
    pulse: Pulse,
    tell: fn(Result<registry::WatchBatch, RegistryError>) -> Option<Vec<u8>>,
) -> Response {
    let (sender, lines) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    let first = line(&Ok::<_, Failure>(first));
    tokio::spawn(async move {
        let telling = async {
            sender.send(Ok(first.into())).await.ok()?;
            loop {
                // It may be about to find its registry again, so silence does not interrupt it.
                let mut changing = changes.next();
                let changed = loop {
                    let silence = async {
                        sleep(SILENCE_MAX).await;
                        pulse.beats(&clerk).await
                    };
                    tokio::select! {
                        changed = &mut changing => break changed,
                        answers = silence => match answers {
                            true => sender.send(Ok(Bytes::from_static(b"\n"))).await.ok()?,
                            false => return None::<Infallible>,
                        },
                    }
                };
                let is_last = changed.is_err();
                sender.send(Ok(tell(changed)?.into())).await.ok()?;
                if is_last {
                    return None;
                }
            }
        };
        tokio::select! {
            () = sender.closed() => {}
            _ = telling => {}
        }
    });
    Response::new(Body::from_stream(ReceiverStream::new(lines)))
}
