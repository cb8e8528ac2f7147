//! The findings about cameras: each one is asked for a picture.

use futures_util::future::join_all;
use ledge_base::memory_budget::MemoryAccount;
use ledge_egress::Egress;
use ledge_engine::pipeline::image::{DecodeLimits, ImageError};
use ledge_part::check::{Finding, size};
use ledge_part::section::DoctorContext;
use ledge_service::audit_event::AuditSink;
use ledge_service::off_thread::{block_on, blocking};
use tokio::sync::Semaphore;

use crate::address::SnapshotUrl;
use crate::camera::Camera;
use crate::change::gray_thumbnail;
use crate::config::{CameraConfig, CamerasConfig};
use crate::fetch::PictureFetcher;
use crate::health::{CameraHealth, CameraState};
use crate::picture_memory::{PICTURES_BYTES_MAX, PictureMemory};

/// The findings about cameras that are watched, by their state now.
pub fn watched<'a>(cameras: impl Iterator<Item = &'a Camera>) -> Vec<Finding> {
    let check = |camera: &Camera| {
        let CameraHealth { state, reason, .. } = camera.health();
        finding(camera.config.name.as_str(), camera.config.url.is_some(), state, &reason.unwrap_or_default())
    };
    cameras.filter_map(check).collect()
}

/// The finding about a camera in a state; `None` before its first picture.
pub fn finding(camera: &str, has_address: bool, state: CameraState, reason: &str) -> Option<Finding> {
    let name = format!("camera {camera}");
    let (detail, advice) = match state {
        CameraState::Waiting => return None,
        CameraState::Online => return Some(Finding::ok(&name, "it gives pictures")),
        CameraState::Failing => (
            "is failing: its pictures come and cannot be used",
            "check that its url is that of a JPEG, PNG or WebP picture, and that its model is loaded and has time",
        ),
        CameraState::Frozen => (
            "is frozen",
            "restart the camera, or the software that makes its pictures; where a picture may stay the same, set \
             camera.frozen_after_ms to a longer time or 0",
        ),
        CameraState::Away if has_address => ("gives no picture", "check the camera, its url and its login"),
        CameraState::Away => ("gives no picture", "check the software that sends its pictures"),
    };
    Some(Finding::fail(&name, format!("it {detail}: {reason}"), advice))
}

/// The result of asking a camera for a picture.
struct PictureProbe {
    /// Bytes, width and height.
    picture: Result<(usize, (u32, u32)), String>,
    /// True if the password itself was sent.
    sends_password: bool,
}

/// Asks each camera with an address for a picture, all at the same time.
pub fn checks(config: &CamerasConfig, context: &DoctorContext<'_>) -> Vec<Finding> {
    if !context.may_connect {
        return Vec::new();
    }
    let egress = Egress::new(context.egress, AuditSink::to_nowhere());
    let memory = PictureMemory::new(PICTURES_BYTES_MAX);
    let with_address =
        config.iter().filter_map(|camera| Some((camera, PictureFetcher::new(camera, &egress, &memory)?)));
    let permits = Semaphore::new(1);
    let asked = block_on(join_all(with_address.map(async |(camera, fetcher)| (camera, ask(fetcher, &permits).await))));
    match asked {
        Ok(asked) => asked.iter().map(|(camera, asked)| check(camera, asked)).collect(),
        Err(error) => vec![Finding::fail("cameras", error.to_string(), "see the message")],
    }
}

/// Fetches a picture, and decodes it while holding a permit, so that only one picture is decoded at a time.
async fn ask(mut fetcher: PictureFetcher, permits: &Semaphore) -> PictureProbe {
    let picture = match fetcher.picture().await {
        Ok(picture) => {
            // Decoded as the daemon does it: a whole header says nothing about the rest.
            let decode = move || {
                let gray = gray_thumbnail(&picture, DecodeLimits::default(), &MemoryAccount::unlimited())?;
                Ok::<_, ImageError>((picture.len(), gray.size))
            };
            let _permit = permits.acquire().await;
            blocking(decode).await.map_err(|error| format!("its picture cannot be used: {error}"))
        }
        Err(error) => Err(format!("it gives no picture: {error}")),
    };
    PictureProbe { picture, sends_password: fetcher.sends_password() }
}

fn check(camera: &CameraConfig, asked: &PictureProbe) -> Finding {
    let name = format!("camera {}", camera.name);
    match &asked.picture {
        Err(reason) => Finding::fail(&name, reason, "check the camera, its url and its login"),
        Ok((bytes, (width, height))) => {
            let detail = format!("a picture of {width}x{height} pixels, {}", size(*bytes as u64));
            let has_secret = camera.url.as_ref().is_some_and(SnapshotUrl::has_secret);
            let is_plain = camera.url.as_ref().is_some_and(|url| !url.tls && !url.at.host.is_loopback());
            if asked.sends_password && is_plain {
                let detail =
                    format!("{detail}; it asks for the password in plain text, which others on the network can read");
                let advice = "turn on digest authentication at the camera, or use https:// with a pinned certificate";
                return Finding::warn(&name, detail, advice);
            }
            if has_secret && is_plain {
                let detail = format!("{detail}; its url has a password, which others on the network can read");
                let advice = "use https:// with a pinned certificate, or `user` and `password_file` with digest \
                              authentication";
                return Finding::warn(&name, detail, advice);
            }
            Finding::ok(&name, detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use ledge_part::check::FindingStatus;
    use ledge_part::section::findings_alone;

    use super::*;

    fn camera(text: &str) -> CameraConfig {
        toml::from_str(&format!("name = 'yard'\n{text}")).unwrap()
    }

    #[test]
    fn a_password_in_plain_text_is_a_warning_unless_it_stays_on_this_box() {
        let picture = || Ok((200_000, (1920, 1080)));
        let status = |url: &str, sends_password| {
            check(&camera(&format!("url = '{url}'")), &PictureProbe { picture: picture(), sends_password }).status
        };
        assert_eq!(status("http://10.0.0.7/", true), FindingStatus::Warn);
        assert_eq!(status("http://10.0.0.7/", false), FindingStatus::Ok);
        assert_eq!(status("https://10.0.0.7/", true), FindingStatus::Ok);
        assert_eq!(status("http://127.0.0.1/", true), FindingStatus::Ok);
        assert_eq!(status("http://10.0.0.7/?user=a&password=b", false), FindingStatus::Warn);
        assert_eq!(status("https://10.0.0.7/?user=a&password=b", false), FindingStatus::Ok);
        assert_eq!(status("http://127.0.0.1/?user=a&password=b", false), FindingStatus::Ok);
    }

    #[test]
    fn a_camera_that_does_not_answer_is_a_failure_and_one_without_address_is_not_asked() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let cameras = vec![camera(&format!("url = 'http://127.0.0.1:{port}/'")), camera("")];
        let [found] = findings_alone(&CamerasConfig(cameras), std::path::Path::new(".")).try_into().unwrap();
        assert!(found.status == FindingStatus::Fail && found.name == "camera yard", "{found:?}");
        assert!(found.detail.contains("refuses the connection"), "{found:?}");
    }
}
