//! The metrics of the process and of the machine.

use std::fmt::Error;

use ledge_base::telemetry::machine::{CoreUsage, MachineUsage};
use ledge_base::telemetry::process;
use ledge_base::telemetry::service_usage::{self, ServiceUsage};
use ledge_base::telemetry::system::MachineMemory;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use ledge_part::metrics::{family, gauge_value, single};

/// Writes the metrics of this process, where the system provides them.
pub fn encode(encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    family(encoder, "build_info", "The version of Ledge", [(version, ConstGauge::new(1_i64))])?;
    if let Some(usage) = service_usage::usage() {
        encode_service(encoder, usage)?;
    }
    let Some(process) = process::usage() else { return Ok(()) };
    let mut gauge = |name, help, value| single(encoder, name, help, &ConstGauge::new(value));
    gauge("process_resident_memory_bytes", "Resident memory of the daemon alone", gauge_value(process.resident_bytes))?;
    gauge("process_threads", "Threads of the daemon alone", gauge_value(process.threads))?;
    gauge("process_start_time_seconds", "Start, since the Unix epoch", gauge_value(process.started_at))?;
    let help = "CPU time of the daemon alone";
    single(encoder, "process_cpu_seconds", help, &ConstCounter::new(process.cpu_seconds))
}

/// Writes the resources of the daemon and of all that it started.
fn encode_service(encoder: &mut DescriptorEncoder<'_>, usage: ServiceUsage) -> Result<(), Error> {
    let ServiceUsage { memory_bytes, cpu, processes, threads } = usage;
    let mut gauge = |name, help, value| single(encoder, name, help, &ConstGauge::new(value));
    let help = "Memory of all processes of the service; a page that several share counts once (PSS)";
    gauge("service_memory_bytes", help, gauge_value(memory_bytes))?;
    gauge("service_processes", "Processes of the service", gauge_value(processes))?;
    gauge("service_threads", "Threads of all processes of the service", gauge_value(threads))?;
    let help = "CPU time of all processes of the service, with those that have ended";
    single(encoder, "service_cpu_seconds", help, &ConstCounter::new(cpu.as_secs_f64()))
}

/// Writes the metrics of the machine that the process runs on.
pub fn encode_machine(encoder: &mut DescriptorEncoder<'_>, machine: &MachineUsage) -> Result<(), Error> {
    let core = |core: &CoreUsage| vec![("core", core.core.clone())];
    let loads = machine.cores.iter().filter_map(|usage| Some((core(usage), ConstGauge::new(usage.load?))));
    let help = "Share of time that the core was busy since the scrape before, whatever it ran";
    family(encoder, "machine_core_load_ratio", help, loads)?;
    let frequencies =
        machine.cores.iter().filter_map(|usage| Some((core(usage), ConstGauge::new(gauge_value(usage.frequency_hz?)))));
    family(encoder, "machine_core_frequency_hertz", "The core's frequency now", frequencies)?;
    let temperatures = machine
        .temperatures
        .iter()
        .map(|(sensor, &celsius)| (vec![("sensor", sensor.clone())], ConstGauge::new(celsius)));
    if let Some(memory) = MachineMemory::read() {
        let gauge = |bytes| ConstGauge::new(gauge_value(bytes));
        let help = "Memory that programs may still take, without that of the control group's limit";
        single(encoder, "machine_memory_available_bytes", help, &gauge(memory.available_bytes))?;
        single(encoder, "machine_memory_size_bytes", "Memory of the machine", &gauge(memory.total_bytes))?;
    }
    family(encoder, "machine_temperature_celsius", "Temperature by sensor", temperatures)
}
