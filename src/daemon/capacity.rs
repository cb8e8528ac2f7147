//! Capacity as a part of the daemon, connected to the models, the cameras and the disks.

use std::sync::Arc;

use ledge_cameras::cameras::Cameras;
use ledge_capacity::part::Capacity;
use ledge_capacity::{CameraReading, CapacitySources};
use ledge_models::serving::Serving;

use crate::config::Config;

/// The capacity of this box.
pub fn capacity(config: &Config, serving: &Serving, cameras: &Cameras) -> Capacity {
    let cameras = cameras.clone();
    let reading = move || {
        let of = |work: ledge_cameras::cameras::CameraWork| CameraReading {
            model: work.model,
            pictures: work.pictures,
            looked: work.looked,
            comparing: work.comparing,
        };
        cameras.work().into_iter().map(of).collect()
    };
    let objectives = config.objective.clone();
    Capacity::new(CapacitySources {
        serving: serving.clone(),
        cameras: Arc::new(reading),
        objective: Arc::new(move |model| objectives.p99_of(model)),
        stores: super::stores(config),
        request_memory_bytes: config.http.counted_memory_bytes(),
        control_threads: config.control.threads,
    })
}
