//! The audit records of published pictures: that they were published, and never what is on them.

use ledge_base::names::CameraName;
use ledge_service::audit_event::AuditEvent;

/// The least time between two records of one camera.
const RECORD_INTERVAL_MS: u64 = 3_600_000;

/// The published pictures that no record counts yet.
#[derive(Debug, Default)]
pub struct PublishedPictures {
    uncounted: u64,
    last_record_ms: Option<u64>,
}

impl PublishedPictures {
    /// Counts a picture at `now_ms`. Returns the record that is due: at the first one, and once an hour.
    pub fn count(&mut self, camera: &CameraName, now_ms: u64) -> Option<AuditEvent> {
        self.uncounted += 1;
        if self.last_record_ms.is_some_and(|last| now_ms.saturating_sub(last) < RECORD_INTERVAL_MS) {
            return None;
        }
        self.last_record_ms = Some(now_ms);
        self.rest(camera)
    }

    /// The record of what is not counted yet, at the end.
    pub fn rest(&mut self, camera: &CameraName) -> Option<AuditEvent> {
        let pictures = std::mem::take(&mut self.uncounted);
        (pictures > 0).then(|| AuditEvent::PicturesPublished { camera: camera.clone(), pictures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_picture_is_recorded_and_then_an_hour_of_them() {
        let (camera, mut published) = ("yard".parse().unwrap(), PublishedPictures::default());
        let times = (0..500).map(|number| number * 10_000);
        let records = times.filter_map(|now| published.count(&camera, now));
        let counts: Vec<_> = records
            .map(|event| match event {
                AuditEvent::PicturesPublished { pictures, .. } => pictures,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(counts, [1, 360]);
        assert!(matches!(published.rest(&camera), Some(AuditEvent::PicturesPublished { pictures: 139, .. })));
        assert_eq!(published.rest(&camera), None);
    }
}
