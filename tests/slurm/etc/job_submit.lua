-- A rule of many sites: whoever submits says which project pays.
function slurm_job_submit(job, partitions, user)
   if job.account == nil then
      slurm.log_user("This site bills projects: add --account=PROJECT")
      return slurm.ERROR
   end
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user)
   return slurm.SUCCESS
end

return slurm.SUCCESS
