//! The metrics of cameras.

use std::fmt::Error;
use std::sync::Arc;
use std::time::Duration;

use ledge_part::metrics::{family, label};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::camera::Camera;
use crate::clock::Moment;
use crate::counters::{CameraCounter, CameraCounters};
use crate::health::CameraState;

/// Writes the metrics of all cameras, at `now`.
pub fn encode(encoder: &mut DescriptorEncoder<'_>, cameras: &[Arc<Camera>], now: Moment) -> Result<(), Error> {
    let of = |camera: &Camera| label("camera", camera.config.name.as_str());
    let all: Vec<_> = cameras.iter().map(|camera| (camera, camera.health())).collect();
    let is = |is_so: bool| ConstGauge::new(i64::from(is_so));

    let online = all.iter().map(|(camera, health)| (of(camera), is(health.state == CameraState::Online)));
    family(encoder, "camera_online", "1 while the camera is online, else 0", online)?;
    let states = all.iter().flat_map(|(camera, health)| {
        CameraState::ALL.map(|state| {
            let mut labels = of(camera);
            labels.push(("state", state.as_str().to_owned()));
            (labels, is(health.state == state))
        })
    });
    family(encoder, "camera_state", "1 for the state of the camera, else 0", states)?;
    let ages = all.iter().filter_map(|(camera, health)| {
        let age = Duration::from_millis(now.since_ms(health.new_picture()?));
        Some((of(camera), ConstGauge::new(age.as_secs_f64())))
    });
    let help = "Time since the last picture that was looked at and had other bytes than the one before";
    family(encoder, "camera_picture_age_seconds", help, ages)?;

    let pictures = cameras.iter().flat_map(|camera| {
        let counters = &camera.counters;
        let results = [
            ("inferred", &counters.inferred),
            ("unchanged", &counters.unchanged),
            ("missing", &counters.missing),
            ("failed", &counters.failed),
        ];
        results.map(|(result, count)| {
            let mut labels = of(camera);
            labels.push(("result", result.to_owned()));
            (labels, ConstCounter::new(count.get()))
        })
    });
    let help = "Pictures by result: those of `unchanged` showed nothing new, and the model was not asked";
    family(encoder, "camera_pictures", help, pictures)?;

    let mut counter = |name, help, figure: fn(&CameraCounters) -> &CameraCounter| {
        let samples = cameras.iter().map(|camera| (of(camera), ConstCounter::new(figure(&camera.counters).get())));
        family(encoder, name, help, samples)
    };
    counter("camera_events", "Events: something appeared, or is gone", |of| &of.events)?;
    counter("camera_published_pictures", "Annotated pictures that were published", |of| &of.published)?;
    let mut seconds = |name, help, figure: fn(&CameraCounters) -> &CameraCounter| {
        let samples = cameras.iter().map(|camera| {
            let time = Duration::from_micros(figure(&camera.counters).get());
            (of(camera), ConstCounter::new(time.as_secs_f64()))
        });
        family(encoder, name, help, samples)
    };
    seconds("camera_fetch_seconds", "Time spent on waiting for the camera", |of| &of.fetching_us)?;
    seconds("camera_compare_seconds", "Time spent on decoding and comparing pictures", |of| &of.comparing_us)
}
