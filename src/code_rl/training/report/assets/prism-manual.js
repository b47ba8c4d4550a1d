window.Prism = { manual: true, disableWorkerMessageHandler: true };
