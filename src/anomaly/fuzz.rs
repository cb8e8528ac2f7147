//! Properties that hold for any bytes of a stored state.

use crate::detector::SeriesDetector;
use crate::monitor::MonitorSet;
use crate::rows::RowProfile;

/// True when any kind of state is accepted.
///
/// # Panics
///
/// A state that is accepted is not written as it was read, or cannot be used.
pub fn fuzz_anomaly_state(bytes: &[u8]) -> bool {
    let mut accepted = false;
    if let Ok(mut detector) = SeriesDetector::decode(bytes) {
        assert_eq!(SeriesDetector::decode(&detector.encode()).as_ref(), Ok(&detector));
        let later = detector.last_ms.max(0).saturating_add(detector.pace().interval_ms());
        for step in 0..3 {
            let at = later.saturating_add(step * detector.pace().interval_ms());
            if let Ok(verdict) = detector.observe(at, step as f64) {
                assert!(!verdict.score.is_nan());
            }
        }
        let _ = (detector.forecast(3, 0.9), detector.time_to_limit(1.0), detector.teach_normal());
        accepted = true;
    }
    if let Ok(mut profile) = RowProfile::decode(bytes) {
        assert_eq!(RowProfile::decode(&profile.encode()).as_ref(), Ok(&profile));
        let row = vec![Some(1.0); profile.features()];
        assert!(profile.observe(&row).is_ok_and(|verdict| !verdict.score.is_nan()));
        accepted = true;
    }
    let mut set = MonitorSet::default();
    accepted | set.restore(bytes).is_ok()
}
