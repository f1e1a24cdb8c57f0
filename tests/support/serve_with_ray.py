"""Serves a model with Ray, for tests: `python serve_with_ray.py MODEL PORT`. Serves until its stdin is closed."""

import sys

if __name__ == "__main__":
    import ray
    from ray import serve

    from regard.serving.ray import deployment

    model, port = sys.argv[1], int(sys.argv[2])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    application = deployment(
        {"en": model},
        replicas=2,
        slots=2,
        queue=4,
        max_length=100_000,  # outputs that take minutes
        actor={"num_cpus": 1},
    )
    serve.run(application, route_prefix="/nmt")
    (status,) = serve.status().applications.values()
    (running,) = status.deployments.values()
    print("serving", running.replica_states.get("RUNNING"), flush=True)
    sys.stdin.read()
    serve.shutdown()
    ray.shutdown()
