//! The routes of cameras.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use ledge_base::principal::Principal;
use ledge_part::api_error::ApiError;
use ledge_part::reply::json;
use ledge_part::route::needs::{VIEW, VIEW_PICTURES};
use ledge_part::route::{PathParts, Route, RouteScope};

use crate::camera::Camera;
use crate::cameras::Cameras;
use crate::recent::DrawnPicture;
use crate::status::{CamerasDocument, EventsDocument, hidden};
use crate::watch::WatcherServices;

/// The routes of cameras.
pub const ROUTES: &[Route<Cameras>] = &[
    Route::get("/cameras", VIEW, || get(cameras)).scope(RouteScope::Box),
    Route::get("/cameras/events", VIEW, || get(events)).scope(RouteScope::Box),
    Route::get("/cameras/{camera}/picture", VIEW_PICTURES, || get(picture)).scope(RouteScope::Box),
];

/// The headers of a picture. No cache keeps it, and no page of another site shows it.
const PICTURE_HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_TYPE, "image/jpeg"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// `GET /cameras`.
async fn cameras(State(cameras): State<Cameras>) -> Response {
    json(&CamerasDocument::of(&cameras))
}

/// `GET /cameras/events`.
async fn events(State(cameras): State<Cameras>) -> Response {
    json(&EventsDocument::of(&cameras))
}

/// `GET /cameras/{camera}/picture`.
async fn picture(
    State(cameras): State<Cameras>,
    Extension(caller): Extension<Principal>,
    PathParts(path): PathParts,
) -> Result<Response, ApiError> {
    let name = path.get("camera").map_or("", String::as_str);
    let camera = cameras.all().iter().find(|camera| camera.config.name.as_str() == name);
    let camera = camera.ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, "no camera has this name"))?;

    let jpeg = drawn(camera, cameras.watching()).await?;
    camera.seen_by(&caller, cameras.watching().now());

    let mut response = Response::new(Body::from(jpeg));
    for (name, value) in PICTURE_HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

/// The last picture of a camera, as it may be shown. It is drawn on the first request, and the drawing serves all
/// further requests.
async fn drawn(camera: &Arc<Camera>, watching: &WatcherServices) -> Result<Bytes, ApiError> {
    let WatcherServices { renderer, kept, .. } = watching;
    let mut drawing = camera.recent.drawing.lock().await;
    let Some(last) = camera.recent.picture() else {
        let message = format!("no picture of {} has come yet", camera.config.name);
        return Err(ApiError::later(StatusCode::SERVICE_UNAVAILABLE, message, camera.config.interval()));
    };
    if let Some(drawing) = drawing.as_ref().filter(|drawing| drawing.number == last.number) {
        return Ok(drawing.jpeg.clone());
    }
    *drawing = None;

    let not_shown = |reason: &str| {
        let message = format!("no picture of {} is shown: {reason}", camera.config.name);
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
    };
    if let Some(reason) = hidden(camera, &last, renderer) {
        return Err(not_shown(&reason));
    }
    let Some(examined) = last.examined.clone() else { return Err(not_shown("it is not kept")) };
    let jpeg = renderer.draw(camera, examined, camera.outlines(last.size)).await;
    let jpeg = jpeg.map_err(|error| not_shown(&error.to_string()))?;
    // Without room in memory it is drawn again for the next request.
    *drawing = kept.try_keep(jpeg.clone()).map(|jpeg| DrawnPicture { number: last.number, jpeg });
    Ok(jpeg)
}

#[cfg(test)]
mod tests {
    use ledge_identity::access::Role;

    use super::*;

    #[test]
    fn pictures_are_for_few() {
        for Route { rule, .. } in ROUTES {
            let sees = rule.roles().collect::<Vec<_>>();
            assert_eq!(sees == [Role::Admin, Role::CameraViewer], rule.path.ends_with("/picture"), "{}", rule.path);
        }
    }
}
