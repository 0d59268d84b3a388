//! The rules for Prometheus, their runbooks and the dashboard for Grafana.

mod alerts;
mod dashboard;
mod queries;
