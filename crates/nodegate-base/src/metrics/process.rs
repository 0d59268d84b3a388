//! What Prometheus' client libraries report about a process, under the same names. Read when it is scraped, and on Linux only.

use super::catalog::Catalog;

pub(super) fn register(catalog: &mut Catalog) {
    catalog.section("Process");
    #[cfg(target_os = "linux")]
    linux::register(catalog);
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fmt;

    use procfs::process::{LimitValue, Process};
    use procfs::{ProcResult, WithCurrentSystemInfo as _};
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
    use prometheus_client::metrics::counter::ConstCounter;
    use prometheus_client::metrics::gauge::ConstGauge;
    use prometheus_client::registry::Unit;

    use super::Catalog;

    /// A metric of the process: its name without the unit, the unit, its meaning and its value.
    struct Described {
        stem: &'static str,
        unit: Option<Unit>,
        help: &'static str,
        value: Value,
    }

    #[derive(Clone, Copy)]
    enum Value {
        Counter(fn(&Reading) -> f64),
        Gauge(fn(&Reading) -> f64),
    }

    /// All metrics of the process.
    fn all() -> [Described; 8] {
        let of = |stem, unit, help, value| Described { stem, unit, help, value };
        [
            of(
                "process_cpu",
                Some(Unit::Seconds),
                "CPU time of the process, user and system",
                Value::Counter(|of| of.cpu),
            ),
            of("process_open_fds", None, "Open file descriptors", Value::Gauge(|of| of.open_files)),
            of("process_max_fds", None, "Maximum number of open file descriptors", Value::Gauge(|of| of.max_files)),
            of("process_virtual_memory", Some(Unit::Bytes), "Virtual memory", Value::Gauge(|of| of.virtual_memory)),
            of(
                "process_virtual_memory_max",
                Some(Unit::Bytes),
                "Maximum of virtual memory; -1 without a limit",
                Value::Gauge(|of| of.max_virtual_memory),
            ),
            of("process_resident_memory", Some(Unit::Bytes), "Resident memory", Value::Gauge(|of| of.resident_memory)),
            of(
                "process_start_time",
                Some(Unit::Seconds),
                "When the process started, in seconds since 1970",
                Value::Gauge(|of| of.started),
            ),
            of("process_threads", None, "Threads of the process", Value::Gauge(|of| of.threads)),
        ]
    }

    struct Reading {
        cpu: f64,
        open_files: f64,
        max_files: f64,
        virtual_memory: f64,
        max_virtual_memory: f64,
        resident_memory: f64,
        started: f64,
        threads: f64,
    }

    fn read() -> ProcResult<Reading> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let limits = process.limits()?;
        let ticks = procfs::ticks_per_second() as f64;
        let limit = |value: LimitValue| match value {
            LimitValue::Unlimited => -1.0,
            LimitValue::Value(value) => value as f64,
        };
        Ok(Reading {
            cpu: (stat.utime + stat.stime) as f64 / ticks,
            open_files: process.fd_count()? as f64,
            max_files: limit(limits.max_open_files.soft_limit),
            virtual_memory: stat.vsize as f64,
            max_virtual_memory: limit(limits.max_address_space.soft_limit),
            resident_memory: stat.rss_bytes().get() as f64,
            started: procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
            threads: stat.num_threads as f64,
        })
    }

    #[derive(Debug)]
    struct OfThisProcess;

    impl Collector for OfThisProcess {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
            // Without /proc there is nothing to report, and the other metrics are still there.
            let Ok(reading) = read() else { return Ok(()) };
            for Described { stem, unit, help, value } in all() {
                // As the registry ends the text of every metric.
                let help = &format!("{help}.");
                match value {
                    Value::Counter(value) => {
                        let metric = ConstCounter::new(value(&reading));
                        metric.encode(encoder.encode_descriptor(stem, help, unit.as_ref(), metric.metric_type())?)?;
                    }
                    Value::Gauge(value) => {
                        let metric = ConstGauge::new(value(&reading));
                        metric.encode(encoder.encode_descriptor(stem, help, unit.as_ref(), metric.metric_type())?)?;
                    }
                }
            }
            Ok(())
        }
    }

    pub(super) fn register(catalog: &mut Catalog) {
        for Described { stem, unit, help, value } in all() {
            let suffix = unit.as_ref().map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
            let (kind, total) = match value {
                Value::Counter(_) => ("counter", "_total"),
                Value::Gauge(_) => ("gauge", ""),
            };
            catalog.list_collected(&format!("{stem}{suffix}{total}"), kind, unit, help);
        }
        catalog.registry.register_collector(Box::new(OfThisProcess));
    }
}
