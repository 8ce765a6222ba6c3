//! The read side of the API over HTTP: metrics, health, and what the commands print with `--json`.
//!
//! [`router`] is the service; whoever has a socket serves it. Nothing here changes the cluster. Every process answers for
//! the whole cluster, from the map that is kept current and from what the OSDs published, read at most once a second
//! however many ask; metrics are of its own OSDs. Whatever waits for the registry waits for [`REGISTRY_LIMIT`] at most.

use crate::board::Board;
use crate::figures::NodeFigures;
use crate::health::{Health, Level};
use crate::metrics::{Exposition, Format, Summary};
use crate::status::Status;
use crate::view::{self, OsdView, PgView, PoolView, Reports, VolumeView};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base::NodeId;
use base::map::ClusterMap;
use registry::cluster::{Cluster, Known, ManagerRecord};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use utoipa::{OpenApi, ToSchema};

/// How long an answer may wait for the registry.
pub const REGISTRY_LIMIT: Duration = Duration::from_secs(3);
/// How long what was read from the registry is good for.
const FRESH: Duration = Duration::from_secs(1);

/// What the answers are made from.
pub struct Source {
    node: NodeId,
    pid: u32,
    cluster: Cluster,
    maps: watch::Receiver<Arc<ClusterMap>>,
    manager: watch::Receiver<Known<ManagerRecord>>,
    board: Board,
    read: Mutex<Option<(Instant, Arc<Reports>)>>,
}

impl Source {
    /// For a process of `node`, whose OSDs tell what they have to tell on `board`.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn new(
        node: NodeId,
        cluster: Cluster,
        maps: watch::Receiver<Arc<ClusterMap>>,
        board: Board,
    ) -> Source {
        let manager = cluster.watch_manager();
        Source { node, pid: std::process::id(), cluster, maps, manager, board, read: Mutex::new(None) }
    }

    /// The map and what the OSDs published, not older than [`FRESH`].
    async fn read(&self) -> Result<(Arc<ClusterMap>, Arc<Reports>), Unavailable> {
        let reading = async {
            // One reads, and the others wait for it.
            let mut read = self.read.lock().await;
            if let Some((at, reports)) = read.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
                return Ok((*at, reports.clone()));
            }
            let read_now = Reports::read_with_registry(&self.cluster).await;
            let reports = Arc::new(read_now.map_err(|error| Unavailable(error.to_string()))?);
            Ok(read.insert((Instant::now(), reports)).clone())
        };
        let (_, reports) = match tokio::time::timeout(REGISTRY_LIMIT, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(Unavailable::silent()),
        };
        let map = self.maps.borrow().clone();
        match map.revision {
            // Nothing was read yet.
            0 => Err(Unavailable::silent()),
            _ => Ok((map, reports)),
        }
    }

    async fn status(&self) -> Result<Status, Unavailable> {
        let (map, reports) = self.read().await?;
        let mut status = Status::of(&map, &reports);
        status.cluster.id = view::short_id(map.cluster);
        Ok(status)
    }

    fn is_manager(&self) -> bool {
        matches!(
            &*self.manager.borrow(),
            Known::Is(manager) if manager.node == self.node && manager.pid == self.pid
        )
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

/// What is asked for is in the registry, and that does not answer.
struct Unavailable(String);

impl Unavailable {
    fn silent() -> Unavailable {
        let seconds = REGISTRY_LIMIT.as_secs();
        Unavailable(format!(
            "the registry did not answer within {seconds} s; volumes are served meanwhile. Look whether `millpond up` runs"
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
    paths(health, metrics, api_health, status, osds, pgs, pools, volumes, figures, openapi)
)]
struct Document;

/// The OpenAPI document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

/// All paths.
pub fn router(source: Arc<Source>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/api/v1/health", get(api_health))
        .route("/api/v1/status", get(status))
        .route("/api/v1/osds", get(osds))
        .route("/api/v1/pgs", get(pgs))
        .route("/api/v1/pools", get(pools))
        .route("/api/v1/volumes", get(volumes))
        .route("/api/v1/figures", get(figures))
        .route("/api/v1/openapi.json", get(openapi))
        .fallback(unknown)
        .method_not_allowed_fallback(only_get)
        .with_state(source)
}

type Of = State<Arc<Source>>;

/// Whether everything serves, for load balancers and probes.
#[utoipa::path(get, path = "/health", tag = "monitoring", responses(
    (status = 200, description = "Everything serves, with problems or without", body = Health),
    (status = 503, description = "Something does not serve, or nobody can tell", body = HealthOrFailure),
))]
async fn health(State(source): Of) -> Result<Response, Unavailable> {
    let health = source.status().await?.health;
    let code = if health.level == Level::Error { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    Ok((code, Json(health)).into_response())
}

/// What Prometheus scrapes: of this process's OSDs, and from the manager's process of the whole cluster.
#[utoipa::path(get, path = "/metrics", tag = "monitoring", responses(
    (status = 200, description = "In Prometheus' text format, or as OpenMetrics to who accepts that", body = String,
     content_type = "text/plain"),
))]
async fn metrics(State(source): Of, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept);
    let read = source.read().await.ok();
    let registry_answers = read.is_some();
    let is_manager = source.is_manager();
    let cluster = read.filter(|_| is_manager).map(|(map, reports)| {
        let pgs = view::pgs(&map, &reports.statuses);
        Summary::of(Arc::new(Status::of(&map, &reports)), &pgs)
    });
    let exposition = Exposition {
        node: source.node,
        osds: source.board.told(),
        map: source.maps.borrow().clone(),
        registry_answers,
        is_manager,
        cluster,
    };
    ([(header::CONTENT_TYPE, format.content_type())], exposition.encode(format)).into_response()
}

/// The verdict, with what is wrong.
#[utoipa::path(get, path = "/api/v1/health", tag = "cluster", responses(
    (status = 200, description = "As `millpond health --json`", body = Health),
    (status = 503, description = "The registry does not answer", body = Failure),
))]
async fn api_health(State(source): Of) -> Result<Json<Health>, Unavailable> {
    Ok(Json(source.status().await?.health))
}

/// Everything at once.
#[utoipa::path(get, path = "/api/v1/status", tag = "cluster", responses(
    (status = 200, description = "As `millpond status --json`, but for the cluster's id, which is cut short", body = Status),
    (status = 503, description = "The registry does not answer", body = Failure),
))]
async fn status(State(source): Of) -> Result<Json<Status>, Unavailable> {
    Ok(Json(source.status().await?))
}

/// The OSDs.
#[utoipa::path(get, path = "/api/v1/osds", tag = "cluster", responses(
    (status = 200, description = "As `millpond osd tree --json`", body = Vec<OsdView>),
    (status = 503, description = "The registry does not answer", body = Failure),
))]
async fn osds(State(source): Of) -> Result<Json<Vec<OsdView>>, Unavailable> {
    let (map, reports) = source.read().await?;
    Ok(Json(view::osds(&map, &reports)))
}

/// The placement groups.
#[utoipa::path(get, path = "/api/v1/pgs", tag = "cluster", responses(
    (status = 200, description = "As `millpond pg dump --json`", body = Vec<PgView>),
    (status = 503, description = "The registry does not answer", body = Failure),
))]
async fn pgs(State(source): Of) -> Result<Json<Vec<PgView>>, Unavailable> {
    let (map, reports) = source.read().await?;
    Ok(Json(view::pgs(&map, &reports.statuses)))
}

/// The pools.
#[utoipa::path(get, path = "/api/v1/pools", tag = "cluster", responses(
    (status = 200, description = "As `millpond pool ls --json`", body = Vec<PoolView>),
    (status = 503, description = "The registry does not answer", body = Failure),
))]
async fn pools(State(source): Of) -> Result<Json<Vec<PoolView>>, Unavailable> {
    let (map, reports) = source.read().await?;
    Ok(Json(view::pools(&map, &view::pgs(&map, &reports.statuses))))
}

/// The volumes.
#[utoipa::path(get, path = "/api/v1/volumes", tag = "cluster", responses(
    (status = 200, description = "As `millpond volume ls --json`", body = Vec<VolumeView>),
    (status = 503, description = "The registry does not answer", body = Failure),
))]
async fn volumes(State(source): Of) -> Result<Json<Vec<VolumeView>>, Unavailable> {
    let (map, _) = source.read().await?;
    Ok(Json(view::volumes(&map)))
}

/// What the OSDs of this process counted since it started.
#[utoipa::path(get, path = "/api/v1/figures", tag = "process", responses(
    (status = 200, description = "Counts, as of the last second in which something was done", body = NodeFigures),
))]
async fn figures(State(source): Of) -> Json<NodeFigures> {
    let told = source.board.told().into_values();
    let osds = told.filter_map(|told| told.figures).map(|figures| (*figures).clone()).collect();
    Json(NodeFigures { node: source.node, pid: source.pid, osds })
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
