//! The HTTPS server of the webhook and the HTTP server of the probes.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use nodegate_webhook::health::Readiness;
use nodegate_webhook::tls::{self, Limits, Observer, Protocol};

/// The two servers.
pub(super) struct Servers {
    pub(super) https: (TcpListener, Protocol, axum::Router),
    pub(super) limits: Limits,
    pub(super) probes: (TcpListener, axum::Router),
    pub(super) readiness: Arc<Readiness>,
    pub(super) observer: Observer,
    pub(super) drain_delay: Duration,
}

impl Servers {
    /// Serves until `shutdown`. Then it reports "not ready", asks callers to open new connections, waits for
    /// `drain_delay`, closes the listener, finishes requests in progress, and stops the probe server last.
    pub(super) async fn run(self, shutdown: CancellationToken) {
        let (stop_accepting, stop_probes) = (CancellationToken::new(), CancellationToken::new());
        let (listener, router) = self.probes;
        let silent: Observer = Arc::new(|_| {});
        let probes =
            tls::serve(listener, Protocol::Http, hyper_service(router), Limits::probes(), silent, stop_probes.clone());
        let probes = tokio::spawn(probes);
        let (listener, protocol, router) = self.https;
        let router = retiring(router, shutdown.clone());
        let https =
            tls::serve(listener, protocol, hyper_service(router), self.limits, self.observer, stop_accepting.clone());
        let draining = async {
            shutdown.cancelled().await;
            self.readiness.drain();
            tokio::time::sleep(self.drain_delay).await;
            stop_accepting.cancel();
        };
        let (drained, ()) = tokio::join!(https, draining);
        if drained.cut_off > 0 {
            tracing::warn!(connections = drained.cut_off, "closed connections whose requests took too long to finish");
        }
        stop_probes.cancel();
        // The probe server ends by itself; a panic in it was logged when it happened.
        let _ = probes.await;
        tracing::info!("drained");
    }
}

/// Adds `Connection: close` to each response once `shutdown` is requested, so that a caller moves to another replica
/// between two requests. Otherwise a request that it sends while nodegate closes the connection would be lost: Go's
/// HTTP client repeats no POST (`Request.isReplayable` in net/http).
fn retiring(router: axum::Router, shutdown: CancellationToken) -> axum::Router {
    router.layer(map_response(move |mut response: Response| {
        if shutdown.is_cancelled() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        std::future::ready(response)
    }))
}

fn hyper_service(router: axum::Router) -> TowerToHyperService<axum::Router> {
    TowerToHyperService::new(router)
}
