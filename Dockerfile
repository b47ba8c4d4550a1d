# A machine for `executor=http://HOST:8080`: code-rl's sandbox server, from the package alone.
#
#   make wheel && docker build -t code-rl-sandbox . && docker run --rm -p 127.0.0.1:8080:8080 code-rl-sandbox
#
# The protocol has no password: publish the port to trusted networks only. With `--security-opt seccomp=unconfined
# --security-opt apparmor=unconfined` the sandbox has its strongest isolation; without, the strongest that Docker's own profile allows.
FROM python:3.12-slim
COPY build/wheel/*.whl /tmp/
RUN pip install --no-cache-dir "$(ls /tmp/*.whl)[train,solutions]" && rm /tmp/*.whl && useradd --create-home runner
USER runner
EXPOSE 8080
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=5)"]
CMD ["code-rl", "sandbox", "host=0.0.0.0", "port=8080"]
