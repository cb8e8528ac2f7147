//! The table of methods, and gRPC as a part of the daemon.

use std::sync::Arc;

use axum::routing::post;
use ledge_models::serving::Serving;
use ledge_part::Subsystem;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::needs::{INFER, OPERATE, PUBLIC, VIEW, VIEW_OR_INFER};
use ledge_part::route::{BoundRoute, Route, RouteScope, bind};
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;

use super::methods::GrpcMethodsState;
use super::{health, infer, models, reflection};

/// The methods of gRPC, by their paths in HTTP/2.
pub const ROUTES: &[Route<GrpcMethodsState>] = &[
    Route::post("/inference.GRPCInferenceService/ServerLive", PUBLIC, || post(health::server_live)).grpc(),
    Route::post("/inference.GRPCInferenceService/ServerReady", PUBLIC, || post(health::server_ready)).grpc(),
    Route::post("/inference.GRPCInferenceService/ServerMetadata", VIEW_OR_INFER, || post(models::server_metadata))
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelReady", VIEW_OR_INFER, || post(models::model_ready))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelMetadata", VIEW_OR_INFER, || post(models::model_metadata))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelInfer", INFER, || post(infer::model_infer))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelStreamInfer", INFER, || post(infer::model_stream_infer))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelConfig", VIEW_OR_INFER, || post(models::model_config))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelStatistics", VIEW, || post(models::model_statistics))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/RepositoryIndex", VIEW, || post(models::repository_index))
        .scope(RouteScope::Listed)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/RepositoryModelLoad", OPERATE, || post(models::load))
        .scope(RouteScope::Configured)
        .audited()
        .grpc(),
    Route::post("/inference.GRPCInferenceService/RepositoryModelUnload", OPERATE, || post(models::unload))
        .scope(RouteScope::Configured)
        .audited()
        .grpc(),
    Route::post("/grpc.health.v1.Health/Check", PUBLIC, || post(health::check)).grpc(),
    Route::post("/grpc.health.v1.Health/List", PUBLIC, || post(health::list)).grpc(),
    Route::post("/grpc.health.v1.Health/Watch", PUBLIC, || post(health::watch)).grpc(),
    Route::post("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", PUBLIC, reflection::v1).grpc(),
    Route::post("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", PUBLIC, reflection::v1alpha).grpc(),
];

/// gRPC as a part of the daemon.
#[derive(Debug, Clone)]
pub struct GrpcPart {
    pub serving: Serving,
    pub readiness: Arc<Readiness>,
    pub shutdown: Shutdown,
}

impl Subsystem for GrpcPart {
    fn name(&self) -> &'static str {
        "gRPC"
    }

    fn routes(&self, context: &HandlerContext) -> Vec<BoundRoute> {
        let Self { serving, readiness, shutdown } = self.clone();
        bind(ROUTES, &GrpcMethodsState::new(serving, readiness, shutdown, context.clone()))
    }
}
