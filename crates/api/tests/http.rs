//! The API over HTTP, without a socket: what its OpenAPI document promises is what it answers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use api::board::Board;
use api::codes::Code;
use api::figures::{ClientTraffic, OsdFigures, PoolTraffic, VolumeTraffic};
use api::http::{Source, document, router};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use base::figures::{Figures, Traffic};
use base::map::DeviceClass;
use base::{ClientId, ClusterId, NodeId, OsdId, OsdUuid, PoolId, VolumeId};
use http_body_util::BodyExt;
use registry::EmbeddedRegistry;
use registry::cluster::{Cluster, LostRange, ManagerRecord, OsdStatus, PgState, PgStatus, RecoveryProgress};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt;

/// A cluster in which there is something of everything.
struct Setting {
    cluster: Cluster,
    router: Router,
    _scratch: tempfile::TempDir,
}

impl Setting {
    async fn new() -> Setting {
        let scratch = tempfile::tempdir().unwrap();
        let id = ClusterId(uuid(1));
        let registry = EmbeddedRegistry::create(&scratch.path().join("registry.redb"), id).unwrap();
        let cluster = Cluster::new(Arc::new(registry));
        cluster.create(id).await.unwrap();
        let lease = cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
        for node in 0..3 {
            let uuid = OsdUuid(uuid(u128::from(node) + 2));
            let osd = cluster.register_osd(uuid, NodeId(node), 1 << 30, DeviceClass::Ssd).await.unwrap();
            let address = ([127, 0, 0, 1], 7000 + node as u16).into();
            // The last one is down.
            if node < 2 {
                cluster.osd_up(osd, address, lease).await.unwrap();
            }
        }
        cluster.create_pool("default", 3, 2, 8).await.unwrap();
        cluster.create_volume("disk", "default", 1 << 30).await.unwrap();
        let map = cluster.map().await.unwrap();
        let volume = *map.volumes.keys().next().unwrap();
        for osd in [OsdId(0), OsdId(1)] {
            let led = map.pgs.iter().filter(|(_, config)| config.primary == osd);
            let pgs = led.map(|(pg, config)| {
                let recovery = Some(RecoveryProgress { objects_left: 2, bytes_left: 8192 });
                let in_sync = config.in_sync.clone();
                (*pg, PgStatus { epoch: config.epoch, state: PgState::Active, in_sync, objects: 3, recovery })
            });
            let status = OsdStatus {
                used_bytes: 5,
                usable_bytes: 10,
                pgs: pgs.collect(),
                lost: vec![LostRange { volume, offset: 0, length: 4096 }],
                lost_blocks: 1,
                damaged_reads: 1,
                ..OsdStatus::default()
            };
            cluster.publish_osd_status(osd, lease, &status).await.unwrap();
        }
        let record = ManagerRecord { node: NodeId(0), pid: std::process::id(), away: BTreeMap::new() };
        assert!(cluster.become_manager(&record, lease).await.unwrap());
        let board = Board::default();
        board.note_figures(OsdId(0), figures(volume));
        board.note_status(OsdId(0), &OsdStatus::default());
        let mut maps = cluster.watch_map();
        maps.wait_for(|map| map.revision > 0).await.unwrap();
        let source = Source::new(NodeId(0), cluster.clone(), maps, board);
        let setting = Setting { cluster, router: router(Arc::new(source)), _scratch: scratch };
        // Until it is known who the manager is.
        while !setting.get("/metrics").await.1.contains("\nmillpond_manager 1\n") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        setting
    }

    async fn ask(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let answer = self.ask(Request::get(path).body(Body::empty()).unwrap()).await;
        let code = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn json(&self, path: &str) -> (StatusCode, Value) {
        let (code, body) = self.get(path).await;
        (code, serde_json::from_str(&body).unwrap())
    }
}

fn uuid(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}

fn figures(volume: VolumeId) -> OsdFigures {
    let traffic = Traffic { reads: 1, read_bytes: 4096, ..Traffic::default() };
    let mut requests = Figures::default();
    requests.read.done(4096, Duration::from_micros(100));
    OsdFigures {
        osd: OsdId(0),
        at_ns: 1,
        requests,
        cpu_ns: 2,
        operations_in_flight: 0,
        recovery_sent_bytes: 0,
        pools: vec![PoolTraffic { pool: PoolId(1), traffic }],
        volumes: vec![VolumeTraffic { volume, traffic }],
        clients: vec![ClientTraffic { client: ClientId(u64::MAX), traffic }],
    }
}

#[tokio::test]
async fn every_path_answers_what_the_openapi_document_says() {
    let setting = Setting::new().await;
    let (_, document) = setting.json("/api/v1/openapi.json").await;
    assert_eq!(document, serde_json::to_value(self::document()).unwrap());
    let parsed = oas3::from_json(document.to_string()).expect("it is a document of OpenAPI 3.1");
    let paths: Vec<String> = parsed.paths.expect("it has paths").keys().cloned().collect();
    assert!(paths.len() >= 10, "{paths:?}");
    for path in paths {
        let (code, body) = setting.get(&path).await;
        let code = code.as_u16().to_string();
        let content = &document["paths"][&path]["get"]["responses"][&code]["content"];
        assert!(content.is_object(), "{path} answers {code}, which is not in the document");
        let Some(schema) = content.pointer("/application~1json/schema") else {
            assert!(content["text/plain"].is_object(), "{path}: {content}");
            continue;
        };
        let mut schema = schema.clone();
        schema["components"] = document["components"].clone();
        let validator = jsonschema::validator_for(&schema).expect("the schema is one");
        let body: Value = serde_json::from_str(&body).unwrap();
        let errors: Vec<String> = validator.iter_errors(&body).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{path}: {errors:?}\n{body:#}");
        // A schema that takes anything would show nothing.
        assert!(
            path.ends_with("openapi.json") || !validator.is_valid(&json!({"something": "else"})),
            "{path}"
        );
    }
}

#[tokio::test]
async fn health_is_for_probes_and_metrics_of_the_manager_tell_of_the_whole_cluster() {
    let setting = Setting::new().await;
    let (code, health) = setting.json("/health").await;
    // Blocks are lost, and a primary is down.
    assert_eq!((code, &health["level"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("error")));
    let codes: Vec<&str> = health["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["code"].as_str().unwrap())
        .collect();
    for code in [Code::DataLost, Code::PgStopped, Code::OsdDown, Code::OsdDamagedBlocks] {
        assert!(codes.contains(&code.name()), "{code} is not in {codes:?}");
    }
    let (code, again) = setting.json("/api/v1/health").await;
    assert_eq!((code, again), (StatusCode::OK, health));
    let (_, metrics) = setting.get("/metrics").await;
    for sample in [
        "millpond_health_level 2",
        "millpond_health_problems{code=\"DATA_LOST\",level=\"error\"} 2",
        "millpond_osds{state=\"down\"} 1",
        "millpond_registry_reachable 1",
        "millpond_volume_operations_total{osd=\"osd.0\",volume=\"disk\",operation=\"read\"} 1",
        "millpond_pool_pgs{pool=\"default\"} 8",
    ] {
        assert!(metrics.lines().any(|line| line == sample), "{sample} is not in:\n{metrics}");
    }
    // Another becomes the manager: it tells of the cluster now, and this process no more.
    let before = setting.cluster.manager().await.unwrap().unwrap();
    let other = ManagerRecord { node: NodeId(1), ..before.clone() };
    let lease = setting.cluster.registry().lease_grant(Duration::from_secs(600)).await.unwrap().id;
    assert!(setting.cluster.publish_manager(&before, &other, lease).await.unwrap());
    while setting.get("/metrics").await.1.contains("\nmillpond_manager 1\n") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (_, metrics) = setting.get("/metrics").await;
    assert!(!metrics.contains("millpond_health_level") && metrics.contains("millpond_osd_operations_total"));
}

#[tokio::test]
async fn nobody_learns_the_whole_id_of_the_cluster_which_opens_the_osds() {
    let setting = Setting::new().await;
    let id = setting.cluster.id().await.unwrap().to_string();
    let (_, status) = setting.json("/api/v1/status").await;
    assert_eq!(status["cluster"]["id"].as_str(), id.get(..8));
    for path in document().paths.paths.keys() {
        let (_, body) = setting.get(path).await;
        assert!(!body.contains(&id), "{path} tells it: {body}");
    }
}

#[tokio::test]
async fn what_is_not_there_and_what_may_not_be_done_is_said() {
    let setting = Setting::new().await;
    let (code, body) = setting.json("/api/v1/moons").await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    assert!(body["error"].as_str().unwrap().contains("/api/v1/openapi.json"), "{body}");
    let answer = setting.ask(Request::post("/api/v1/osds").body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
    let request =
        Request::get("/metrics").header(header::ACCEPT, "application/openmetrics-text; version=1.0.0");
    let answer = setting.ask(request.body(Body::empty()).unwrap()).await;
    let kind = answer.headers()[header::CONTENT_TYPE].to_str().unwrap();
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
}
