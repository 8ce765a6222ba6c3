//! The API over HTTP: metrics, health, and what the commands print with `--json`.
//!
//! [`router`] is what every process serves to whoever reaches its loopback interface: metrics and figures of its own OSDs, and
//! answers about the whole cluster. The process that manages the cluster makes these from what it was told ([`Collector`]) and
//! the map that is kept current; any other asks it ([`AskManager`]). [`manager_router`] is what the manager serves to nodes,
//! owners and monitors of the cluster, who proved their keys: the same answers, and a place for reports ([`manager::reports`]). There each
//! process, manager or not, tells them also what its own OSDs count.
//!
//! What the manager answers is made anew as often as takes a twentieth of a core at most, and once a second at least, however
//! many ask. It does not answer from a map that may be old: the registry must have answered a moment ago. Whatever waits for
//! the registry waits for [`REGISTRY_LIMIT`] at most. Nothing here changes the cluster.

use crate::board::Board;
use crate::caller::Caller;
use crate::figures::{NodeFigures, OsdFigures};
use crate::metrics::{Exposition, Format};
use crate::registry_health;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Extension, FromRequest, Query, State};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base::map::ClusterMap;
use base::{Access, Encryption, NodeId, OsdId};
use cluster::{Cluster, Known, ManagerRecord};
use health::codes::Level;
use health::problem::{Health, Problem};
use health::status::{ManagerView, NodeView, Overview, Picture, Status};
use health::view::{self, OsdView, PgView, PoolView, Reports, TrashedVolumeView, VolumeView};
use manager::collector::{Collector, Refusal};
use manager::log::{LogQuery, LogView};
use manager::reports::Report;
use serde::Serialize;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, watch};
use utoipa::{OpenApi, ToSchema};

/// How long an answer may wait for the registry.
pub const REGISTRY_LIMIT: Duration = Duration::from_secs(3);
/// Where reports are taken.
pub const REPORTS_PATH: &str = "/api/v1/reports";
/// Where the manager tells what the processes of all nodes logged. Logs name addresses, keys and volumes, so they are only for
/// who proved a key.
pub const LOG_PATH: &str = "/api/v1/log";
/// What the OSDs of a process counted.
pub const FIGURES_PATH: &str = "/api/v1/figures";
/// What stands before a path for an answer that anybody may see.
pub const PUBLIC_PREFIX: &str = "/public";
/// The longest report that is taken, in bytes: one tells of so few groups that it is far shorter.
pub const REPORT_BYTES_MAX: usize = 8 << 20;
/// How long an answer is good for, at least and at most.
const FRESH_MIN: Duration = Duration::from_millis(50);
const FRESH_MAX: Duration = Duration::from_secs(1);
/// An answer is good for so many times as long as it took to make.
const FRESH_PER_WORK: u32 = 20;
/// What is made faster than that is made anew for a new map.
const CHEAP: Duration = Duration::from_millis(10);
/// How long what the registry says of the drives of OSDs that are down is good for.
const DRIVES_FRESH: Duration = Duration::from_secs(10);
/// How long what was found wrong with the registry is good for.
const PROBLEMS_FRESH: Duration = Duration::from_secs(5);
/// How often it is looked whether a new manager was told all.
const GATHER_LOOK: Duration = Duration::from_millis(20);

/// An answer of the manager's.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its code.
    pub code: StatusCode,
    /// Its body: JSON.
    pub body: Bytes,
}

/// An answer on its way, or why there is none, in words.
pub type Asking<'a> = Pin<Box<dyn Future<Output = Result<Answer, String>> + Send + 'a>>;

/// The way to whoever manages the cluster.
pub trait AskManager: Send + Sync {
    /// Asks for a path.
    fn ask<'a>(&'a self, path: &'a str) -> Asking<'a>;
}

/// What the answers are made from.
pub struct Source {
    parts: Parts,
    pid: u32,
    picture: Mutex<Option<Made>>,
    registry_answered: Lately<bool>,
    drives: Lately<BTreeMap<OsdId, String>>,
    registry_problems: Lately<Vec<Problem>>,
    /// Who tells how its OSDs are has this meanwhile.
    turns: std::sync::Mutex<BTreeMap<NodeId, Arc<Mutex<()>>>>,
}

/// What the registry said a moment ago. One asks it, and the others wait for that.
struct Lately<T>(Mutex<Option<(Instant, T)>>);

impl<T: Clone> Lately<T> {
    fn new() -> Lately<T> {
        Lately(Mutex::new(None))
    }

    /// What it said if that is younger than `fresh`, or what it says now. A failure is not kept.
    async fn or_ask<E>(&self, fresh: Duration, ask: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let mut said = self.0.lock().await;
        if let Some((at, said)) = &*said
            && at.elapsed() < fresh
        {
            return Ok(said.clone());
        }
        let now = ask.await?;
        Ok(said.insert((Instant::now(), now)).1.clone())
    }
}

/// A picture that was made.
struct Made {
    at: Instant,
    took: Duration,
    picture: Arc<Picture>,
}

impl Made {
    /// Whether it is good for an answer still. One that costs next to nothing does not outlive a change of the map, so that
    /// whoever changed something sees it.
    fn is_good(&self, now: Instant, revision: u64) -> bool {
        let is_cheap = self.took < CHEAP;
        let is_current = self.picture.status.overview.cluster.revision == revision;
        let fresh = (self.took * FRESH_PER_WORK).clamp(FRESH_MIN, FRESH_MAX);
        now.duration_since(self.at) < fresh && (is_current || !is_cheap)
    }
}

/// What a [`Source`] is made of.
pub struct Parts {
    /// The node that this is a process of.
    pub node: NodeId,
    /// The cluster.
    pub cluster: Cluster,
    /// Its map, kept current.
    pub maps: watch::Receiver<Arc<ClusterMap>>,
    /// Its manager, kept current.
    pub manager: watch::Receiver<Known<ManagerRecord>>,
    /// What the OSDs of this process tell.
    pub board: Board,
    /// What all OSDs tell, while this process is the manager.
    pub collector: Collector,
    /// The way to the manager, while it is not.
    pub elsewhere: Arc<dyn AskManager>,
}

impl Source {
    /// Made of these.
    #[must_use]
    pub fn new(parts: Parts) -> Source {
        Source {
            parts,
            pid: std::process::id(),
            picture: Mutex::new(None),
            registry_answered: Lately::new(),
            drives: Lately::new(),
            registry_problems: Lately::new(),
            turns: std::sync::Mutex::default(),
        }
    }

    /// Who may connect, by the newest map.
    ///
    /// # Errors
    /// As [`Caller::admit`].
    pub fn admit(&self, key: &base::PublicKey) -> Result<Caller, String> {
        Caller::admit(key, &self.parts.maps.borrow(), &self.parts.collector)
    }

    /// Whether connections are to be encrypted, by the newest map.
    #[must_use]
    pub fn encryption(&self) -> Encryption {
        self.parts.maps.borrow().encryption
    }

    /// Waits until connections are to be encrypted.
    pub async fn encryption_is_on(&self) {
        let mut maps = self.parts.maps.clone();
        if maps.wait_for(|map| map.encryption == Encryption::On).await.is_err() {
            // Nobody keeps the map any more: the process ends.
            std::future::pending().await
        }
    }

    /// What one process of a node at a time has while it reports. There is one for each node that has a key.
    fn turn_of(&self, node: NodeId) -> Arc<Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.entry(node).or_default().clone()
    }

    fn is_manager(&self) -> bool {
        let is_this = matches!(
            &*self.parts.manager.borrow(),
            Known::Is(manager) if manager.node == self.parts.node && manager.pid == self.pid
        );
        is_this && self.parts.collector.is_manager()
    }

    /// The cluster as this process, its manager, knows it.
    async fn picture(&self) -> Result<Arc<Picture>, Unavailable> {
        // One makes it, and the others wait for it.
        let mut cached = self.picture.lock().await;
        let now = Instant::now();
        let revision = self.parts.maps.borrow().revision;
        if let Some(made) = cached.as_ref().filter(|made| made.is_good(now, revision)) {
            return Ok(made.picture.clone());
        }
        *cached = None;
        if !self.registry_answers().await {
            return Err(Unavailable::silent());
        }
        let (map, heard) = loop {
            let map = self.parts.maps.borrow().clone();
            let heard = self.parts.collector.heard(Instant::now(), &map);
            let heard = heard.ok_or_else(|| Unavailable(Refusal::NotManager.to_string()))?;
            // The first map is empty: nothing was read yet.
            if map.revision > 0 && heard.is_complete {
                break (map, heard);
            }
            if map.revision == 0 && now.elapsed() > REGISTRY_LIMIT {
                return Err(Unavailable::silent());
            }
            tokio::time::sleep(GATHER_LOOK).await;
        };
        let is_any_unheard = map.osds.keys().any(|osd| !heard.statuses.contains_key(osd));
        let drives = if is_any_unheard { self.drives().await? } else { BTreeMap::new() };
        let (away, late) = match &*self.parts.manager.borrow() {
            Known::Is(manager) => (manager.away.clone(), manager.late.clone()),
            Known::Absent | Known::NotYet => Default::default(),
        };
        let registry = self.registry_problems().await;
        let manager = ManagerView::new(self.parts.node, self.pid, heard.oldest);
        let began = Instant::now();
        let made = tokio::task::spawn_blocking(move || {
            let reports = Reports { statuses: heard.statuses, drives, away, late, registry, silence: None };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Picture::of(&map, &reports, Some(manager), now.as_secs())
        });
        let picture = Arc::new(made.await.map_err(|error| Unavailable(error.to_string()))?);
        *cached = Some(Made { at: Instant::now(), took: began.elapsed(), picture: picture.clone() });
        Ok(picture)
    }

    /// Whether the registry answers. It is asked once a second at most.
    async fn registry_answers(&self) -> bool {
        let ask = async {
            let asked = tokio::time::timeout(REGISTRY_LIMIT, self.parts.cluster.id()).await;
            Ok::<_, Infallible>(matches!(asked, Ok(Ok(_))))
        };
        let Ok(answers) = self.registry_answered.or_ask(FRESH_MAX, ask).await;
        answers
    }

    /// What is wrong with the registry itself. What cannot be found out in time is left out.
    async fn registry_problems(&self) -> Vec<Problem> {
        let ask = async {
            let asked = tokio::time::timeout(REGISTRY_LIMIT, self.parts.cluster.registry().troubles()).await;
            Ok::<_, Infallible>(asked.unwrap_or_default().iter().map(registry_health::problem).collect())
        };
        let Ok(problems) = self.registry_problems.or_ask(PROBLEMS_FRESH, ask).await;
        problems
    }

    /// Where the drives of OSDs were that tell nothing.
    async fn drives(&self) -> Result<BTreeMap<OsdId, String>, Unavailable> {
        let ask = async {
            match tokio::time::timeout(REGISTRY_LIMIT, self.parts.cluster.drives()).await {
                Ok(drives) => drives.map_err(|error| Unavailable(error.to_string())),
                Err(_) => Err(Unavailable::silent()),
            }
        };
        self.drives.or_ask(DRIVES_FRESH, ask).await
    }
}

/// Why there is no answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct Failure {
    /// In words, with what to do.
    pub error: String,
}

/// What `/health` says where not everything serves: the verdict, or why there is none.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "only its schema is used")]
enum HealthOrFailure {
    Health(Health),
    Failure(Failure),
}

/// What is asked for cannot be told now.
struct Unavailable(String);

impl Unavailable {
    fn silent() -> Unavailable {
        let seconds = REGISTRY_LIMIT.as_secs();
        Unavailable(format!(
            "the registry did not answer within {seconds} s; volumes are served meanwhile. Look whether `millpond up`, or the \
             etcd of the cluster, runs"
        ))
    }
}

impl IntoResponse for Unavailable {
    fn into_response(self) -> Response {
        failure(StatusCode::SERVICE_UNAVAILABLE, self.0)
    }
}

fn failure(code: StatusCode, error: String) -> Response {
    (code, Json(Failure { error })).into_response()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Millpond",
        description = "The read side: what the commands print with --json, and the metrics. Served by every process of \
                       a node on the loopback interface of its machine."
    ),
    paths(health, metrics, api_health, status, overview, osds, pgs, pools, volumes, trash, figures, openapi)
)]
struct Document;

/// The OpenAPI document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// To whom something is told, and how far this process goes to find it out.
#[derive(Clone)]
struct Of {
    source: Arc<Source>,
    /// It is told to anybody: not the whole id of the cluster.
    is_public: bool,
    /// The manager is asked if this process is not it.
    asks_manager: bool,
}

impl Of {
    /// What the manager answers to `path`: made here if this process is it.
    async fn tell(
        &self,
        path: &str,
        make: impl FnOnce(&Picture) -> Response,
    ) -> Result<Response, Unavailable> {
        if self.source.is_manager() {
            return Ok(make(&*self.source.picture().await?));
        }
        if !self.asks_manager {
            return Err(Unavailable(Refusal::NotManager.to_string()));
        }
        let path = format!("{PUBLIC_PREFIX}{path}");
        let answer = self.source.parts.elsewhere.ask(&path).await.map_err(Unavailable)?;
        let json = HeaderValue::from_static("application/json");
        Ok((answer.code, [(header::CONTENT_TYPE, json)], answer.body).into_response())
    }

    /// The part of a picture that does not grow with the cluster.
    fn overview(&self, picture: &Picture) -> Overview {
        let mut overview = picture.status.overview.clone();
        if self.is_public {
            overview.cluster.id.truncate(view::SHORT_ID_DIGITS);
        }
        overview
    }
}

/// All paths, for whoever reaches the loopback interface.
pub fn router(source: Arc<Source>) -> Router {
    paths().with_state(Of { source, is_public: true, asks_manager: true })
}

fn paths() -> Router<Of> {
    answers()
        .merge(of_this_process())
        .route("/api/v1/openapi.json", get(openapi))
        .fallback(unknown)
        .method_not_allowed_fallback(only_get)
}

/// What each process answers of its own OSDs.
fn of_this_process() -> Router<Of> {
    Router::new().route("/metrics", get(metrics)).route(FIGURES_PATH, get(figures))
}

/// What the manager answers.
fn answers() -> Router<Of> {
    Router::new()
        .route("/health", get(health))
        .route("/api/v1/health", get(api_health))
        .route("/api/v1/status", get(status))
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/osds", get(osds))
        .route("/api/v1/pgs", get(pgs))
        .route("/api/v1/pools", get(pools))
        .route("/api/v1/volumes", get(volumes))
        .route("/api/v1/trash", get(trash))
}

/// What is served to nodes and owners. Each request bears its [`Caller`] as an extension.
pub fn manager_router(source: Arc<Source>) -> Router {
    let of = |is_public| Of { source: source.clone(), is_public, asks_manager: false };
    Router::new()
        .merge(answers().merge(of_this_process()).with_state(of(false)))
        .nest(PUBLIC_PREFIX, answers().with_state(of(true)))
        .route(REPORTS_PATH, post(reports).with_state(source.clone()))
        .route(LOG_PATH, get(log).with_state(source.clone()))
        .layer(DefaultBodyLimit::max(REPORT_BYTES_MAX))
        .fallback(unknown)
        .layer(middleware::from_fn_with_state(source, check_caller))
}

/// Lets through whom the newest map admits.
async fn check_caller(State(source): State<Arc<Source>>, request: Request<Body>, next: Next) -> Response {
    let is_admitted = request
        .extensions()
        .get::<Caller>()
        .is_some_and(|caller| caller.is_admitted(&source.parts.maps.borrow()));
    if !is_admitted {
        let error = "this key is no longer one of the cluster; `millpond auth ls` shows whose are".to_owned();
        return failure(StatusCode::FORBIDDEN, error);
    }
    next.run(request).await
}

/// Takes what a process tells of its OSDs. It is no part of the API for people.
async fn reports(
    State(source): State<Arc<Source>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Response {
    let Access::Node(node) = caller.principal.access else {
        return failure(StatusCode::FORBIDDEN, "only nodes tell how OSDs are".to_owned());
    };
    // Before anything is taken in. And of a node one report at a time: they are large, and so is what they are read into.
    if !source.parts.collector.takes_reports() {
        return failure(StatusCode::SERVICE_UNAVAILABLE, Refusal::NotManager.to_string());
    }
    let turn = source.turn_of(node);
    let _turn = turn.lock().await;
    let body = match Bytes::from_request(request, &()).await {
        Ok(body) => body,
        Err(rejection) => return rejection.into_response(),
    };
    let report: Report = match serde_json::from_slice(&body) {
        Ok(report) => report,
        Err(error) => {
            return failure(StatusCode::BAD_REQUEST, format!("the report makes no sense: {error}"));
        }
    };
    let map = source.parts.maps.borrow().clone();
    match source.parts.collector.take(Instant::now(), &caller.line, node, &map, report) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(refusal) => {
            let code = match refusal {
                Refusal::NotManager => StatusCode::SERVICE_UNAVAILABLE,
                Refusal::Anew | Refusal::NotYet(_) => StatusCode::CONFLICT,
                Refusal::NotIts { .. } | Refusal::TooMuch { .. } => StatusCode::FORBIDDEN,
            };
            failure(code, refusal.to_string())
        }
    }
}

/// What was logged. It needs no picture of the cluster, and no registry.
async fn log(
    State(source): State<Arc<Source>>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Unavailable> {
    let known = source.parts.collector.log(&query);
    let (next, lines) = known.ok_or_else(|| Unavailable(Refusal::NotManager.to_string()))?;
    Ok(Json(LogView { manager: (source.parts.node, source.pid), next, lines }).into_response())
}

/// Whether everything serves, for load balancers and probes.
#[utoipa::path(get, path = "/health", tag = "monitoring", responses(
    (status = 200, description = "Everything serves, with problems or without", body = Health),
    (status = 503, description = "Something does not serve, or nobody can tell", body = HealthOrFailure),
))]
async fn health(State(of): State<Of>) -> Result<Response, Unavailable> {
    of.tell("/health", |picture| {
        let health = &picture.status.overview.health;
        let code =
            if health.level == Level::Error { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        (code, Json(health)).into_response()
    })
    .await
}

/// What Prometheus scrapes: of this process's OSDs, and from the manager's process of the whole cluster.
#[utoipa::path(get, path = "/metrics", tag = "monitoring", responses(
    (status = 200, description = "In Prometheus' text format, or as OpenMetrics to who accepts that", body = String,
     content_type = "text/plain"),
))]
async fn metrics(State(of): State<Of>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept);
    let source = &of.source;
    let is_manager = source.is_manager();
    let cluster = if is_manager { source.picture().await.ok() } else { None };
    let registry_answers = source.registry_answers().await;
    let exposition = Exposition {
        node: source.parts.node,
        osds: source.parts.board.told(),
        map: source.parts.maps.borrow().clone(),
        registry_answers,
        is_manager,
        cluster,
    };
    ([(header::CONTENT_TYPE, format.content_type())], exposition.encode(format)).into_response()
}

/// The verdict, with what is wrong.
#[utoipa::path(get, path = "/api/v1/health", tag = "cluster", responses(
    (status = 200, description = "As `millpond health --json`", body = Health),
    (status = 503, description = "The registry or the manager does not answer", body = Failure),
))]
async fn api_health(State(of): State<Of>) -> Result<Response, Unavailable> {
    of.tell("/api/v1/health", |picture| Json(&picture.status.overview.health).into_response()).await
}

/// Everything at once.
#[utoipa::path(get, path = "/api/v1/status", tag = "cluster", responses(
    (status = 200, description = "As `millpond status --json`, but for the cluster's id, which is cut short", body = Status),
    (status = 503, description = "The registry or the manager does not answer", body = Failure),
))]
async fn status(State(of): State<Of>) -> Result<Response, Unavailable> {
    /// A [`Status`] of which most is borrowed.
    #[derive(Serialize)]
    struct Told<'a> {
        #[serde(flatten)]
        overview: Overview,
        nodes: &'a [NodeView],
        osds: &'a [OsdView],
    }
    of.tell("/api/v1/status", |picture| {
        let Status { nodes, osds, .. } = &picture.status;
        Json(Told { overview: of.overview(picture), nodes, osds }).into_response()
    })
    .await
}

/// Everything but the lists that grow with the cluster.
#[utoipa::path(get, path = "/api/v1/overview", tag = "cluster", responses(
    (status = 200, description = "What `millpond status` shows; the cluster's id is cut short", body = Overview),
    (status = 503, description = "The registry or the manager does not answer", body = Failure),
))]
async fn overview(State(of): State<Of>) -> Result<Response, Unavailable> {
    of.tell("/api/v1/overview", |picture| Json(of.overview(picture)).into_response()).await
}

/// The OSDs.
#[utoipa::path(get, path = "/api/v1/osds", tag = "cluster", responses(
    (status = 200, description = "As `millpond osd tree --json`", body = Vec<OsdView>),
    (status = 503, description = "The registry or the manager does not answer", body = Failure),
))]
async fn osds(State(of): State<Of>) -> Result<Response, Unavailable> {
    of.tell("/api/v1/osds", |picture| Json(&picture.status.osds).into_response()).await
}

/// The placement groups.
#[utoipa::path(get, path = "/api/v1/pgs", tag = "cluster", responses(
    (status = 200, description = "As `millpond pg dump --json`", body = Vec<PgView>),
    (status = 503, description = "The registry or the manager does not answer", body = Failure),
))]
async fn pgs(State(of): State<Of>) -> Result<Response, Unavailable> {
    of.tell("/api/v1/pgs", |picture| Json(&picture.pgs).into_response()).await
}

/// The pools.
#[utoipa::path(get, path = "/api/v1/pools", tag = "cluster", responses(
    (status = 200, description = "As `millpond pool ls --json`", body = Vec<PoolView>),
    (status = 503, description = "The registry or the manager does not answer", body = Failure),
))]
async fn pools(State(of): State<Of>) -> Result<Response, Unavailable> {
    of.tell("/api/v1/pools", |picture| Json(&picture.status.overview.pools).into_response()).await
}

/// The volumes.
#[utoipa::path(get, path = "/api/v1/volumes", tag = "cluster", responses(
    (status = 200, description = "As `millpond volume ls --json`", body = Vec<VolumeView>),
    (status = 503, description = "The registry or the manager does not answer", body = Failure),
))]
async fn volumes(State(of): State<Of>) -> Result<Response, Unavailable> {
    of.tell("/api/v1/volumes", |picture| Json(&picture.status.overview.volumes).into_response()).await
}

/// The volumes in the trash.
#[utoipa::path(get, path = "/api/v1/trash", tag = "cluster", responses(
    (status = 200, description = "As `millpond volume trash --json`", body = Vec<TrashedVolumeView>),
    (status = 503, description = "The registry or the manager does not answer", body = Failure),
))]
async fn trash(State(of): State<Of>) -> Result<Response, Unavailable> {
    of.tell("/api/v1/trash", |picture| Json(&picture.status.overview.trash).into_response()).await
}

/// What the OSDs of this process counted since it started.
#[utoipa::path(get, path = "/api/v1/figures", tag = "process", responses(
    (status = 200, description = "Counts, as of the last second in which something was done", body = NodeFigures),
))]
async fn figures(State(of): State<Of>) -> Json<NodeFigures> {
    let source = &of.source;
    let told = source.parts.board.told();
    let osds = told.iter().filter_map(|(osd, told)| Some(OsdFigures::of(*osd, told.figures.as_deref()?)));
    let osds = osds.collect();
    Json(NodeFigures { node: source.parts.node, pid: source.pid, is_debug: cfg!(debug_assertions), osds })
}

/// This document.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "process", responses(
    (status = 200, description = "OpenAPI 3.1", body = Object),
))]
async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(document())
}

async fn unknown(uri: Uri) -> Response {
    let error = format!("there is no {}; /api/v1/openapi.json lists what there is", uri.path());
    failure(StatusCode::NOT_FOUND, error)
}

async fn only_get() -> Response {
    let error = "nothing can be changed here; ask with GET".to_owned();
    failure(StatusCode::METHOD_NOT_ALLOWED, error)
}
