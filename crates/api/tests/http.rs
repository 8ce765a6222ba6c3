//! The API over HTTP, without a socket: what its OpenAPI document promises is what it answers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use api::board::Board;
use api::caller::Caller;
use api::http::{Answer, AskManager, Asking, Parts, REPORTS_PATH, Source, document, manager_router, router};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use base::figures::{Counts, Figures, Tally, Traffic};
use base::map::DeviceClass;
use base::status::{LostRange, OsdStatus, PgState, PgStatus, RecoveryProgress};
use base::{
    Access, ClientId, ClusterId, Instant, NodeId, OsdId, OsdUuid, PoolId, Principal, PublicKey, VolumeId,
};
use cluster::{Cluster, ManagerRecord};
use health::codes::Code;
use http_body_util::BodyExt;
use manager::collector::Collector;
use manager::reports::Telling;
use registry_embedded::EmbeddedRegistry;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt;

/// A cluster in which there is something of everything.
struct Setting {
    cluster: Cluster,
    router: Router,
    /// What the manager serves to nodes and owners.
    manager: Router,
    source: Arc<Source>,
    collector: Collector,
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
        let told = Board::default();
        for osd in [OsdId(0), OsdId(1)] {
            let led = map.pgs.iter().filter(|(_, config)| config.primary == osd);
            let pgs = led.map(|(pg, config)| {
                let recovery = Some(RecoveryProgress { objects_left: 2, bytes_left: 8192 });
                let (epoch, in_sync) = (config.epoch, config.in_sync.clone());
                let (state, cut_through) = (PgState::Active, Default::default());
                (
                    *pg,
                    PgStatus {
                        epoch,
                        state,
                        in_sync,
                        objects: 3,
                        recovery,
                        cut_through,
                        flatten: Default::default(),
                    },
                )
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
            told.note_status(osd, &status);
        }
        let record = ManagerRecord {
            node: NodeId(0),
            pid: std::process::id(),
            address: None,
            away: BTreeMap::new(),
            late: BTreeMap::new(),
        };
        assert!(cluster.become_manager(&record, lease).await.unwrap());
        let board = Board::default();
        board.note_figures(OsdId(0), figures(volume));
        board.note_status(OsdId(0), &OsdStatus::default());
        let mut maps = cluster.watch_map();
        maps.wait_for(|map| map.revision > 0).await.unwrap();
        for node in 0..3u8 {
            cluster.add_principal(&format!("node.{node}"), &principal(node)).await.unwrap();
        }
        maps.wait_for(|map| map.principals.len() == 3).await.unwrap();
        let collector = Collector::default();
        collector.begin(std::time::Instant::now());
        let source = Arc::new(Source::new(Parts {
            node: NodeId(0),
            cluster: cluster.clone(),
            maps,
            manager: cluster.watch_manager(),
            board,
            collector: collector.clone(),
            elsewhere: Arc::new(Elsewhere),
        }));
        let setting = Setting {
            cluster,
            router: router(source.clone()),
            manager: manager_router(source.clone()),
            source,
            collector,
            _scratch: scratch,
        };
        for node in 0..2u8 {
            let own = told.statuses().into_iter().filter(|(osd, _)| osd.0 == u32::from(node)).collect();
            let caller = setting.caller(node);
            for report in Telling::default().news(&own) {
                let json = serde_json::to_string(&report).unwrap();
                assert_eq!(setting.tell(&caller, json).await.0, StatusCode::NO_CONTENT);
            }
        }
        // Until it is known who the manager is.
        while !setting.get("/metrics").await.1.contains("\nmillpond_manager 1\n") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        setting
    }

    fn caller(&self, node: u8) -> Caller {
        self.source.admit(&principal(node).public_key).unwrap()
    }

    /// Tells the manager something.
    async fn tell(&self, caller: &Caller, json: String) -> (StatusCode, String) {
        let mut request = Request::post(REPORTS_PATH).body(Body::from(json)).unwrap();
        request.extensions_mut().insert(caller.clone());
        read(self.manager.clone().oneshot(request).await.unwrap()).await
    }

    /// Asks the manager for a path.
    async fn ask_manager(&self, caller: &Caller, path: &str) -> (StatusCode, String) {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(caller.clone());
        read(self.manager.clone().oneshot(request).await.unwrap()).await
    }

    async fn ask(&self, request: Request<Body>) -> Response<Body> {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        read(self.ask(Request::get(path).body(Body::empty()).unwrap()).await).await
    }

    async fn json(&self, path: &str) -> (StatusCode, Value) {
        let (code, body) = self.get(path).await;
        (code, serde_json::from_str(&body).unwrap())
    }
}

/// A manager elsewhere, which says what it was asked for.
struct Elsewhere;

impl AskManager for Elsewhere {
    fn ask<'a>(&'a self, path: &'a str) -> Asking<'a> {
        Box::pin(
            async move { Ok(Answer { code: StatusCode::IM_A_TEAPOT, body: json!(path).to_string().into() }) },
        )
    }
}

async fn read(answer: Response<Body>) -> (StatusCode, String) {
    let code = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(body.to_vec()).unwrap())
}

fn principal(node: u8) -> Principal {
    Principal::new(PublicKey([node; 32]), Access::Node(NodeId(node.into())))
}

fn uuid(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}

fn figures(volume: VolumeId) -> Tally {
    let traffic = Traffic { reads: 1, read_bytes: 4096, ..Traffic::default() };
    let mut requests = Figures::default();
    requests.read.done(4096, Duration::from_micros(100));
    Tally {
        at: Instant { nanoseconds: 1 },
        counts: Counts { requests, cpu_ns: 2, operations_in_flight: 0, recovery_sent_bytes: 0 },
        pools: vec![(PoolId(1), traffic)],
        volumes: vec![(volume, traffic)],
        clients: vec![(ClientId(u64::MAX), traffic)],
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
        "millpond_volume_operations_total{osd=\"osd.0\",pool=\"default\",namespace=\"\",volume=\"disk\",operation=\"read\"} 1",
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
    // What is asked about the cluster, that one is asked, for what anybody may see.
    let asked = setting.get("/api/v1/status").await;
    assert_eq!(asked, (StatusCode::IM_A_TEAPOT, "\"/public/api/v1/status\"".to_owned()));
    let (code, why) = setting.ask_manager(&setting.caller(0), "/api/v1/status").await;
    assert!(code == StatusCode::SERVICE_UNAVAILABLE && why.contains("does not manage"), "{code} {why}");
}

#[tokio::test]
async fn the_manager_tells_owners_all_and_takes_reports_of_nodes_about_themselves() {
    let setting = Setting::new().await;
    let (node, other) = (setting.caller(0), setting.caller(1));
    let id = setting.cluster.id().await.unwrap().to_string();
    for (path, is_whole) in [("/api/v1/status", true), ("/public/api/v1/status", false)] {
        let (code, body) = setting.ask_manager(&node, path).await;
        assert_eq!((code, body.contains(&id)), (StatusCode::OK, is_whole), "{path}");
    }
    // Of its own OSDs each process tells nodes and owners, manager or not, and nobody through another.
    for path in ["/metrics", "/api/v1/figures"] {
        assert_eq!(setting.ask_manager(&node, path).await.0, StatusCode::OK, "{path}");
    }
    for path in ["/public/metrics", "/public/api/v1/figures", "/public/api/v1/reports", "/api/v1/moons"] {
        assert_eq!(setting.ask_manager(&node, path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    let of = |osd: u32, used_bytes: u64| {
        json!({"osds": [{"osd": osd, "anew": true, "status": {"used_bytes": used_bytes}}]}).to_string()
    };
    assert_eq!(setting.tell(&other, of(1, 77)).await.0, StatusCode::NO_CONTENT);
    let used = async || setting.json("/api/v1/osds").await.1[1]["used_bytes"].clone();
    while used().await != 77 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (code, why) = setting.tell(&node, of(1, 78)).await;
    assert!(code == StatusCode::FORBIDDEN && why.contains("osd.1 is not of node.0"), "{code} {why}");
    let (code, why) = setting.tell(&node, r#"{"osds": [{"osd": 0}]}"#.to_owned()).await;
    assert!(code == StatusCode::CONFLICT && why.contains("tell all of it"), "{code} {why}");
    for nonsense in ["", "[1]", r#"{"osds": 7}"#, "\u{0}"] {
        assert_eq!(setting.tell(&node, nonsense.to_owned()).await.0, StatusCode::BAD_REQUEST, "{nonsense:?}");
    }
    let long = "x".repeat(api::http::REPORT_BYTES_MAX + 1);
    assert_eq!(setting.tell(&node, long).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(used().await, 77);
    // Its key is taken away: the connection is worth nothing from then on.
    setting.cluster.remove_principal("node.1").await.unwrap();
    while setting.tell(&other, "{}".to_owned()).await.0 != StatusCode::FORBIDDEN {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(setting.ask_manager(&other, "/api/v1/status").await.0, StatusCode::FORBIDDEN);
    assert!(setting.source.admit(&principal(1).public_key).is_err());
    // It is the manager no more.
    setting.collector.end();
    assert_eq!(setting.tell(&node, "{}".to_owned()).await.0, StatusCode::SERVICE_UNAVAILABLE);
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
