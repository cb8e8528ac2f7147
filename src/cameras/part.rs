//! Cameras as a part of the daemon: their sections of the configuration, routes and metrics.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ledge_base::toml_check::ValueProblem;
use ledge_egress::ConfiguredDestination;
use ledge_identity::access::CallerAccess;
use ledge_part::Subsystem;
use ledge_part::check::Finding;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use ledge_part::section::{ConfigSection, DoctorContext};
use prometheus_client::encoding::DescriptorEncoder;

use crate::camera::Camera;
use crate::cameras::Cameras;
use crate::config::{CAMERAS_MAX, CameraConfig, CamerasConfig, HomeAssistantConfig, LABEL_BYTES_MAX};
use crate::health::CameraState;
use crate::http::ROUTES;
use crate::{doctor, metrics};

/// The most cameras that `systemctl status` names.
const NAMED_MAX: usize = 5;

impl ConfigSection for CamerasConfig {
    fn resolve(&mut self, root: &Path) {
        self.0.iter_mut().flat_map(CameraConfig::files).for_each(|file| file.resolve(root));
    }

    fn problems(&self) -> Vec<ValueProblem> {
        ValueProblem::of_entries(&self.0, "cameras", CAMERAS_MAX, |camera| &camera.name, CameraConfig::problems)
    }

    fn destinations(&self) -> Vec<ConfiguredDestination> {
        let of_camera =
            |(index, camera): (usize, &CameraConfig)| Some(camera.destination()?.in_section(&format!("[{index}]")));
        self.0.iter().enumerate().filter_map(of_camera).collect()
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        doctor::checks(self, context)
    }
}

impl ConfigSection for HomeAssistantConfig {
    fn problems(&self) -> Vec<ValueProblem> {
        let is_level = |level: &str| {
            !level.is_empty() && level.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        if self.prefix.len() <= LABEL_BYTES_MAX && self.prefix.split('/').all(is_level) {
            return Vec::new();
        }
        let problem = "expected levels of A-Z a-z 0-9 _ - with slashes between them, such as \"homeassistant\"";
        vec![ValueProblem::new("prefix", problem)]
    }
}

impl Subsystem for Cameras {
    fn name(&self) -> &'static str {
        "cameras"
    }

    fn routes(&self, _context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, self)
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        metrics::encode(encoder, self.all(), self.watching().now())
    }

    fn problem(&self, is_starting: bool) -> Option<String> {
        if is_starting {
            return None;
        }
        let down = |camera: &Arc<Camera>| match camera.health().state {
            CameraState::Waiting | CameraState::Online => None,
            state => Some(format!("{} is {}", camera.config.name, state.as_str())),
        };
        let down: Vec<_> = self.all().iter().filter_map(down).collect();
        let named = down.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = if down.len() > NAMED_MAX { ", ..." } else { "" };
        let (count, all) = (down.len(), self.all().len());
        (count > 0).then(|| format!("{count} of {all} cameras are not online ({named}{more})"))
    }
}
