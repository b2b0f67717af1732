# One image for gateway, worker and scaler: `docker run IMAGE worker`. The target `cli` is the command `iwl`.
# The dependencies are installed before the code is copied, so that a changed line rebuilds in seconds.
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS dependencies
WORKDIR /build
COPY pyproject.toml constraints.txt ./
RUN python -m venv --without-pip /venv \
 && python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > requirements.txt \
 && python -m pip --python /venv/bin/python install --no-cache-dir --constraint constraints.txt --requirement requirements.txt

FROM dependencies AS cli-dependencies
RUN python -m pip --python /venv/bin/python install --no-cache-dir --constraint constraints.txt rich typer

FROM ${BASE_IMAGE} AS cli
ENV PATH=/venv/bin:$PATH
WORKDIR /app
COPY --from=cli-dependencies /venv /venv
COPY common common
COPY lab lab
RUN python -m compileall -q .
USER 10001:10001
ENTRYPOINT ["python", "-m", "lab"]

FROM ${BASE_IMAGE}
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    IWL_HOST=0.0.0.0
WORKDIR /app
COPY --from=dependencies /venv /venv
COPY common common
COPY api api
COPY worker worker
COPY scaler scaler
RUN python -m compileall -q .
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 8080 9100
ENTRYPOINT ["python", "-m"]
CMD ["api"]
# The gateway's; Compose gives worker and scaler their own.
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
