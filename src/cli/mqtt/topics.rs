//! The topics of this box, also before it has a name.

use std::io::Write as _;

use ledge_identity::device;
use ledge_mqtt::topics::DeviceTopics;

use crate::cli::Output;
use crate::config::Config;

/// The placeholder for the name of a box that has none yet.
const UNNAMED_DEVICE: &str = "unnamed";

/// The topics of this box. A name is created only by the first start of the server, so this creates no file.
pub(super) fn topics(config: &Config) -> anyhow::Result<DeviceTopics> {
    let has_platform = config.updates.repository.is_some();
    Ok(match device::load(&config.state.path, &config.device)? {
        Some(identity) => DeviceTopics { device: identity.id, group: identity.group, has_platform },
        None => DeviceTopics { device: UNNAMED_DEVICE.parse()?, group: config.device.group.clone(), has_platform },
    })
}

/// Writes a note if this box has no name yet.
pub(super) fn note_unnamed(config: &Config, topics: &DeviceTopics, out: &mut Output) -> std::io::Result<()> {
    if config.device.id.is_none() && topics.device.as_str() == UNNAMED_DEVICE {
        writeln!(
            out,
            "This box has no name yet; the first start of the server creates one. \
             Here {UNNAMED_DEVICE:?} stands for it."
        )?;
    }
    Ok(())
}
