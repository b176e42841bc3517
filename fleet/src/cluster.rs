//! A query on a Ballista cluster.
//!
//! This process finds the files and plans the query. The plan only contains what DataFusion can serialize, so any Ballista scheduler and
//! executors of [`VERSION`] can execute it. The files must have the same paths on the executors, or be in stores that their environment
//! gives access to.
//!
//! Left out on purpose: encryption and authentication. Ballista trusts every client that can connect.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ballista_core::RuntimeProducer;
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::execution_plans::execute_physical_plan;
use ballista_core::extension::SessionConfigExt;
use ballista_core::utils::default_session_builder;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::object_store::ObjectStore;
use datafusion::object_store::memory::InMemory;
use datafusion::physical_plan::{ExecutionPlan, SendableRecordBatchStream};
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::PhysicalPlanNode;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use url::{Position, Url};

use crate::engine::QueryEngine;
use crate::stores::{self, ObjectStoreSource};

/// The version of Ballista: the encoding of plans depends on it.
pub const VERSION: &str = ballista_core::BALLISTA_VERSION;

/// Most bytes of a plan, which lists every file; the scheduler must accept as much.
const MESSAGE: u32 = 256 << 20;

/// Timeout of connecting to a scheduler.
const PATIENCE: Duration = Duration::from_secs(20);

/// `HOST:PORT` of `df://HOST:PORT`.
///
/// # Errors
/// What it should be.
pub fn address(url: &str) -> Result<String, String> {
    let help = || format!("--cluster {url}: use df://HOST:PORT, such as df://127.0.0.1:50050");
    let address = url.strip_prefix("df://").ok_or_else(help)?.trim_end_matches('/');
    let (host, port) = address.rsplit_once(':').ok_or_else(help)?;
    let plain = !host.is_empty()
        && !host.contains(['/', '@', '?', '#'])
        && !host.contains(char::is_whitespace);
    let port: u16 = port.parse().map_err(|_| help())?;
    if plain && port > 0 { Ok(address.to_owned()) } else { Err(help()) }
}

/// The session configuration for Ballista.
pub fn config() -> SessionConfig {
    SessionConfig::new_with_ballista().with_ballista_grpc_client_max_message_size(MESSAGE as usize)
}

/// Executes a plan on the cluster.
pub async fn stream(
    address: &str,
    engine: &QueryEngine,
    plan: Arc<dyn ExecutionPlan>,
) -> Result<SendableRecordBatchStream> {
    reach(address).await.map_err(|why| DataFusionError::External(why.into()))?;
    let config = engine.context().copied_config();
    let codec = config.ballista_physical_extension_codec();
    execute_physical_plan::<PhysicalPlanNode>(
        format!("http://{address}"),
        &config.ballista_config(),
        plan,
        codec.as_ref(),
        engine.context().session_id(),
        config,
    )
    .await
}

/// A connection to the scheduler.
async fn reach(address: &str) -> Result<TcpStream, String> {
    match tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(e)) => Err(format!("it cannot be reached ({e})")),
        Err(_) => Err(format!("it did not answer for {} s", PATIENCE.as_secs())),
    }
}

/// Facts of a scheduler.
#[derive(Clone, Debug, Deserialize)]
pub struct Scheduler {
    /// Its version of Ballista.
    pub version: String,
}

/// Facts of an executor.
#[derive(Clone, Debug, Deserialize)]
pub struct Executor {
    pub host: String,
    pub port: u16,
}

/// Asks the scheduler for its version and its executors.
///
/// # Errors
/// A sentence without its subject, the scheduler.
pub async fn ask(address: &str) -> Result<(Scheduler, Vec<Executor>), String> {
    Ok((get(address, "/api/state").await?, get(address, "/api/executors").await?))
}

/// The scheduler's REST interface: one request, one answer, the connection closed.
async fn get<T: for<'de> Deserialize<'de>>(address: &str, path: &str) -> Result<T, String> {
    let mut stream = reach(address).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    );
    let broken = |e: std::io::Error| format!("it broke off ({e})");
    let mut answer = Vec::new();
    let exchange = async {
        stream.write_all(request.as_bytes()).await.map_err(broken)?;
        (&mut stream).take(16 << 20).read_to_end(&mut answer).await.map_err(broken)
    };
    tokio::time::timeout(PATIENCE, exchange)
        .await
        .map_err(|_| "it did not answer in time".to_owned())??;
    let text = String::from_utf8_lossy(&answer);
    let strange = || {
        format!(
            "it does not answer {path} as a Ballista scheduler does; is its REST interface off?"
        )
    };
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(strange)?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(strange());
    }
    serde_json::from_str(body).map_err(|_| strange())
}

/// Runs a scheduler until it is stopped.
pub async fn scheduler(listen: SocketAddr, timeout: u64) -> Result<(), String> {
    let config = SchedulerConfig {
        bind_host: listen.ip().to_string(),
        bind_port: listen.port(),
        external_host: listen.ip().to_string(),
        scheduling_policy: TaskSchedulingPolicy::PullStaged,
        override_session_builder: Some(Arc::new(session)),
        executor_timeout_seconds: timeout,
        expire_dead_executor_interval_seconds: (timeout / 2).clamp(1, 15),
        grpc_server_max_decoding_message_size: MESSAGE,
        grpc_server_max_encoding_message_size: MESSAGE,
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await.map_err(|e| e.to_string())?;
    start_server(cluster, listen, Arc::new(config)).await.map_err(|e| e.to_string())
}

/// A session of the scheduler. Plans can name stores, which it does not read.
fn session(config: SessionConfig) -> Result<SessionState> {
    let runtime = RuntimeEnvBuilder::new().with_object_store_registry(NamedStores::new(unasked));
    let state = default_session_builder(config)?;
    Ok(SessionStateBuilder::new_from_existing(state).with_runtime_env(runtime.build_arc()?).build())
}

/// Options of an executor.
#[derive(Clone, Debug)]
pub struct ExecutorOptions {
    /// Host and port of the scheduler.
    pub scheduler: (String, u16),
    /// Address for fetching results.
    pub listen: SocketAddr,
    /// Port for the scheduler.
    pub control_port: u16,
    /// Its name for others.
    pub external_host: String,
    /// Tasks at the same time; 0: one for each processor.
    pub tasks: usize,
    /// Memory of all tasks together.
    pub memory: u64,
    /// Folder for data passed between tasks.
    pub work: PathBuf,
}

/// Runs an executor until it is stopped.
pub async fn executor(options: ExecutorOptions) -> Result<(), String> {
    let (scheduler_host, scheduler_port) = options.scheduler;
    reach(&format!("{scheduler_host}:{scheduler_port}")).await?;
    let config = ExecutorProcessConfig {
        bind_host: options.listen.ip().to_string(),
        external_host: Some(options.external_host),
        port: options.listen.port(),
        grpc_port: options.control_port,
        scheduler_host,
        scheduler_port,
        concurrent_tasks: options.tasks,
        task_scheduling_policy: TaskSchedulingPolicy::PullStaged,
        work_dir: Some(options.work.to_string_lossy().into_owned()),
        override_runtime_producer: Some(runtimes(&options.work)),
        memory_pool_size: Some(options.memory),
        grpc_max_decoding_message_size: MESSAGE,
        grpc_max_encoding_message_size: MESSAGE,
        ..ExecutorProcessConfig::default()
    };
    start_executor_process(Arc::new(config)).await.map_err(|e| e.to_string())
}

/// The runtime of tasks: Ballista's, with the stores of a plan, configured by this process's environment.
fn runtimes(work: &Path) -> RuntimeProducer {
    let work = work.to_owned();
    let stores = NamedStores::new(of_environment);
    Arc::new(move |_| {
        let builder = RuntimeEnvBuilder::new().with_temp_file_path(&work);
        builder.with_object_store_registry(Arc::clone(&stores) as _).build_arc()
    })
}

/// The stores of plans, each created at first use.
#[derive(Debug)]
struct NamedStores {
    known: DefaultObjectStoreRegistry,
    make: fn(&Url) -> Result<Arc<dyn ObjectStore>>,
}

impl NamedStores {
    fn new(make: fn(&Url) -> Result<Arc<dyn ObjectStore>>) -> Arc<Self> {
        Arc::new(Self { known: DefaultObjectStoreRegistry::new(), make })
    }
}

impl ObjectStoreRegistry for NamedStores {
    fn register_store(
        &self,
        url: &Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        self.known.register_store(url, store)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if let Ok(known) = self.known.get_store(url) {
            return Ok(known);
        }
        let made = (self.make)(url)?;
        self.known.register_store(url, Arc::clone(&made));
        Ok(made)
    }
}

/// A store for an executor, configured by this process's environment.
fn of_environment(url: &Url) -> Result<Arc<dyn ObjectStore>> {
    let base = &url[..Position::BeforePath];
    let made = stores::split(base).and_then(|(base, _)| ObjectStoreSource::open(&base));
    let store = made.map_err(|why| DataFusionError::Execution(format!("{base}: {why}")))?;
    Ok(Arc::clone(store.client()))
}

/// An empty store for the scheduler, which needs no credentials.
#[expect(clippy::unnecessary_wraps, reason = "a maker of stores, as others that may fail")]
fn unasked(_: &Url) -> Result<Arc<dyn ObjectStore>> {
    Ok(Arc::new(InMemory::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(address("df://a:50050").as_deref(), Ok("a:50050"));
        assert_eq!(address("df://[::1]:1/").as_deref(), Ok("[::1]:1"));
        for wrong in [
            "",
            "a:1",
            "http://a:1",
            "df://a",
            "df://:1",
            "df://a:0",
            "df://a:x",
            "df://a/b:1",
            "df://u@a:1",
        ] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
